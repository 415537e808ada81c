CREATE TABLE records (
  visitor STRING,
  page STRING,
  ms BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  WATERMARK FOR at_time AS at_time - INTERVAL '5' MINUTE
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'key.format' = 'raw',
  'key.fields' = 'visitor',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TABLE visits (
  window_key BYTES,
  pages BIGINT,
  ms BIGINT
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-visits',
  'key.format' = 'raw',
  'key.fields' = 'window_key',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO visits
-- A session of Flink ends a gap behind its last record, one of Kafka Streams with it.
SELECT WINDOW_KEY(visitor, window_start, window_end - INTERVAL '30' MINUTE), COUNT(*), SUM(ms)
FROM TABLE(
  SESSION(TABLE records PARTITION BY visitor, DESCRIPTOR(at_time), INTERVAL '30' MINUTE)
)
GROUP BY visitor, window_start, window_end;
