CREATE TABLE records (
  `user` STRING,
  team STRING,
  ms BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'value.format' = 'json'
);

CREATE TABLE teams (
  team STRING,
  most BIGINT,
  longest BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
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
SELECT team, MAX(clicks), MAX(ms), MAX(at_time)
FROM (
  SELECT
    `user`,
    COUNT(*) AS clicks,
    SUM(ms) AS ms,
    LAST_VALUE(team) AS team,
    MAX(at_time) AS at_time
  FROM records
  WHERE ms >= 0
  GROUP BY `user`
)
GROUP BY team;
