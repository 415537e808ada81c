CREATE TABLE records (
  symbol STRING,
  price DOUBLE,
  `size` BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  WATERMARK FOR at_time AS at_time - INTERVAL '1' MINUTE
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'value.format' = 'json'
);

CREATE TABLE averages (
  window_key BYTES,
  price DOUBLE,
  shares BIGINT
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-averages',
  'key.format' = 'raw',
  'key.fields' = 'window_key',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO averages
SELECT WINDOW_KEY(symbol, window_start), SUM(price * `size`) / SUM(`size`), SUM(`size`)
FROM TABLE(TUMBLE(TABLE records, DESCRIPTOR(at_time), INTERVAL '1' MINUTE))
WHERE price > 0 AND symbol IS NOT NULL
GROUP BY symbol, window_start, window_end;
