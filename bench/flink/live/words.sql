CREATE TABLE records (
  line STRING,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp'
) WITH (
  'connector' = 'kafka',
  'topic' = '${input}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.group.id' = '${id}',
  'scan.startup.mode' = 'earliest-offset',
  'value.format' = 'raw'
);

CREATE TABLE counts (
  word STRING,
  occurrences BIGINT,
  at_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
  PRIMARY KEY (word) NOT ENFORCED
) WITH (
  'connector' = 'upsert-kafka',
  'topic' = '${output}',
  'properties.bootstrap.servers' = '${bootstrap}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = '${delivery}',
  'sink.transactional-id-prefix' = '${id}-counts',
  'key.format' = 'raw',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY'
);

INSERT INTO counts
SELECT word, COUNT(*), MAX(at_time)
FROM records CROSS JOIN UNNEST(SPLIT(LOWER(line), ' ')) AS words (word)
GROUP BY word;
