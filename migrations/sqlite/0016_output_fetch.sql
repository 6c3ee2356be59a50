-- Somebody reads what only the runner has: the host takes the row, and puts its bytes into output_fetch_chunk, from where
-- the reader takes them away. Both are gone when he has read.
CREATE TABLE output_fetch (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  task_id BIGINT NOT NULL,
  host TEXT NOT NULL,
  stream SMALLINT NOT NULL CHECK (stream IN (1, 2)),
  start_byte BIGINT NOT NULL,
  end_byte BIGINT NOT NULL,
  taken BOOLEAN NOT NULL DEFAULT FALSE,
  error TEXT,
  touched_at_ms BIGINT NOT NULL
);
CREATE TABLE output_fetch_chunk (
  fetch_id BIGINT NOT NULL,
  start_byte BIGINT NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (fetch_id, start_byte)
);
