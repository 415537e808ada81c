CREATE TABLE records (
  carrier STRING,
  dep_delay DOUBLE,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  WATERMARK FOR at_time AS at_time - INTERVAL '1' HOUR
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'value.format' = 'json'
);

CREATE TABLE delays (
  window_key BYTES,
  flights BIGINT,
  mean_delay DOUBLE
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-delays',
  'key.format' = 'raw',
  'key.fields' = 'window_key',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO delays
SELECT WINDOW_KEY(carrier, window_start), COUNT(*), AVG(dep_delay)
FROM TABLE(TUMBLE(TABLE records, DESCRIPTOR(at_time), INTERVAL '1' DAY))
WHERE dep_delay IS NOT NULL
GROUP BY carrier, window_start, window_end;
