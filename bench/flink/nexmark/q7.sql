CREATE TABLE results (
  `key` BYTES,
  auction BIGINT,
  bidder BIGINT,
  price BIGINT,
  `dateTime` BIGINT,
  extra STRING
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-results',
  'key.format' = 'raw',
  'key.fields' = 'key',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO results
-- Flink's own form of it, a window's first row, for NEXMark's join with the highest price.
SELECT WINDOW_KEY(CAST(0 AS BIGINT), window_start), auction, bidder, price, `dateTime`, extra
FROM (
  SELECT *, ROW_NUMBER() OVER (
    PARTITION BY window_start, window_end ORDER BY price DESC, `dateTime`) AS place
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at_time), INTERVAL '10' SECOND))
)
WHERE place <= 1;
