-- One-time tokens with which hosts join, as SHA-256.
CREATE TABLE join_token (
  hash TEXT PRIMARY KEY,
  created_at_ms BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  expires_at_ms BIGINT NOT NULL,
  used_at_ms BIGINT,
  used_for TEXT,
  CHECK ((used_at_ms IS NULL) = (used_for IS NULL))
);

-- The secret that follows: valid beside the old one until it is used.
ALTER TABLE token ADD COLUMN next_hash TEXT;
