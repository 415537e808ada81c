CREATE TABLE records (
  carrier STRING,
  dep_delay DOUBLE,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'value.format' = 'json'
);

CREATE TABLE delays (
  window_key BYTES,
  flights BIGINT,
  mean_delay DOUBLE,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  PRIMARY KEY (window_key) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-delays',
  'key.format' = 'raw',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO delays
SELECT window_key, COUNT(*), AVG(dep_delay), MAX(at_time)
FROM (
  SELECT
    WINDOW_KEY(carrier, CAST(FLOOR(at_time TO DAY) AS TIMESTAMP(3))) AS window_key,
    dep_delay,
    at_time
  FROM records
  WHERE dep_delay IS NOT NULL
)
GROUP BY window_key;
