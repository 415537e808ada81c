-- What all queries of NEXMark read and write: each script follows this one.
CREATE TABLE events (
  event STRING,
  event_type INT,
  person ROW<
    id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
    `dateTime` BIGINT, extra STRING>,
  auction ROW<
    id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT,
    `dateTime` BIGINT, expires BIGINT, seller BIGINT, category BIGINT, extra STRING>,
  bid ROW<
    auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    `dateTime` BIGINT, extra STRING>,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  WATERMARK FOR at_time AS at_time - INTERVAL '4' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset',
  'key.format' = 'raw',
  'key.fields' = 'event',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE VIEW person AS
SELECT person.id, person.name, person.city, person.state, person.`dateTime`, at_time
FROM events WHERE event_type = 0;

CREATE VIEW auction AS
SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve,
  auction.`dateTime`, auction.expires, auction.seller, auction.category, auction.extra, at_time
FROM events WHERE event_type = 1;

CREATE VIEW bid AS
SELECT event, bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.`dateTime`, bid.extra,
  at_time
FROM events WHERE event_type = 2;

