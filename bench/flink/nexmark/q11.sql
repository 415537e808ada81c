CREATE TABLE results (
  `key` BYTES,
  bidder BIGINT,
  bid_count BIGINT,
  starttime BIGINT,
  endtime BIGINT
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
-- A session of Flink ends a gap behind its last record, one of Kafka Streams with it.
SELECT WINDOW_KEY(bidder, window_start, window_end - INTERVAL '10' SECOND), bidder, COUNT(*),
  MILLIS(window_start), MILLIS(window_end)
FROM TABLE(
  SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(at_time), INTERVAL '10' SECOND)
)
GROUP BY bidder, window_start, window_end;
