CREATE TABLE results (
  `key` BIGINT,
  num BIGINT,
  auctions ARRAY<BIGINT>,
  PRIMARY KEY (`key`) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-results',
  'key.format' = 'raw',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO results
SELECT starttime, num, ARRAY_SORT(ARRAY_AGG(auction))
FROM (
  SELECT AuctionBids.auction, AuctionBids.num, MILLIS(AuctionBids.window_start) AS starttime
  FROM (
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(at_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
  ) AS AuctionBids
  JOIN (
    SELECT MAX(num) AS maxn, window_start, window_end
    FROM (
      SELECT COUNT(*) AS num, window_start, window_end
      FROM TABLE(HOP(TABLE bid, DESCRIPTOR(at_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
      GROUP BY auction, window_start, window_end
    )
    GROUP BY window_start, window_end
  ) AS MaxBids
  ON AuctionBids.window_start = MaxBids.window_start
    AND AuctionBids.window_end = MaxBids.window_end AND AuctionBids.num >= MaxBids.maxn
)
GROUP BY starttime, num;
