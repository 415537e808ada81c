CREATE TABLE records (
  `user` STRING,
  team STRING,
  ms BIGINT
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'value.format' = 'json'
);

CREATE TABLE teams (
  team STRING,
  most BIGINT,
  longest BIGINT,
  PRIMARY KEY (team) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-teams',
  'key.format' = 'raw',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO teams
SELECT team, MAX(clicks), MAX(ms)
FROM (
  SELECT `user`, COUNT(*) AS clicks, SUM(ms) AS ms, LAST_VALUE(team) AS team
  FROM records
  WHERE ms >= 0
  GROUP BY `user`
)
GROUP BY team;
