CREATE TABLE results (
  `key` BIGINT,
  auction BIGINT,
  bidder BIGINT,
  price BIGINT,
  channel STRING,
  url STRING,
  bid_dateTime BIGINT,
  bid_extra STRING,
  itemName STRING,
  description STRING,
  initialBid BIGINT,
  reserve BIGINT,
  auction_dateTime BIGINT,
  expires BIGINT,
  seller BIGINT,
  category BIGINT,
  auction_extra STRING
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
SELECT B.`dateTime`, auction, bidder, price, channel, url, B.`dateTime`, B.extra, itemName,
  description, initialBid, reserve, A.`dateTime`, expires, seller, category, A.extra
FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
WHERE A.category = 10;
