CREATE TABLE results (
  `key` BIGINT,
  id BIGINT,
  itemName STRING,
  description STRING,
  initialBid BIGINT,
  reserve BIGINT,
  `dateTime` BIGINT,
  expires BIGINT,
  seller BIGINT,
  category BIGINT,
  extra STRING,
  auction BIGINT,
  bidder BIGINT,
  price BIGINT,
  bid_dateTime BIGINT,
  bid_extra STRING,
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
SELECT id, id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category,
  extra, auction, bidder, price, bid_dateTime, bid_extra
FROM (
  SELECT A.id, A.itemName, A.description, A.initialBid, A.reserve, A.`dateTime`, A.expires,
    A.seller, A.category, A.extra, B.auction, B.bidder, B.price, B.`dateTime` AS bid_dateTime,
    B.extra AS bid_extra,
    ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS place
  FROM auction A, bid B
  WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
)
WHERE place <= 1;
