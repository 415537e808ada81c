CREATE TABLE records (
  id STRING,
  item STRING,
  country STRING,
  price DOUBLE,
  quantity BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'raw',
  'key.fields' = 'id',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TABLE large_orders (
  id STRING,
  item STRING,
  amount DOUBLE,
  fee DOUBLE,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}-large',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-large-orders',
  'key.format' = 'raw',
  'key.fields' = 'id',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TABLE home_orders (
  id STRING,
  item STRING,
  quantity BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}-home',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-home-orders',
  'key.format' = 'raw',
  'key.fields' = 'id',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TABLE foreign_orders (
  id STRING,
  item STRING,
  quantity BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${output}-abroad',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-foreign-orders',
  'key.format' = 'raw',
  'key.fields' = 'id',
  'value.format' = 'json',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO large_orders
SELECT id, item, price * quantity, price * quantity * 0.01e0, at_time
FROM records
WHERE quantity > 0 AND price * quantity >= 2000;

INSERT INTO home_orders
SELECT id, UPPER(item), quantity, at_time
FROM records
WHERE quantity > 0 AND price * quantity < 2000 AND country = 'NZ';

INSERT INTO foreign_orders
SELECT id, UPPER(item), quantity, at_time
FROM records
WHERE quantity > 0 AND price * quantity < 2000 AND country <> 'NZ';
