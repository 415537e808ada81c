CREATE TABLE records (
  symbol STRING,
  price DOUBLE,
  `size` BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'value.format' = 'json'
);

CREATE TABLE averages (
  window_key BYTES,
  price DOUBLE,
  shares BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  PRIMARY KEY (window_key) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-averages',
  'key.format' = 'raw',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO averages
SELECT window_key, SUM(price * `size`) / SUM(`size`), SUM(`size`), MAX(at_time)
FROM (
  SELECT
    WINDOW_KEY(symbol, CAST(FLOOR(at_time TO MINUTE) AS TIMESTAMP(3))) AS window_key,
    price,
    `size`,
    at_time
  FROM records
  WHERE price > 0 AND symbol IS NOT NULL
)
GROUP BY window_key;
