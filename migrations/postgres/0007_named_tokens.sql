-- Named tokens of four roles, with an expiry.
-- A revoked token keeps its row, without its hash: the name says who did what, and no replica, of this version or
-- the one before, accepts it any more.
ALTER TABLE token DROP CONSTRAINT token_role_check;
ALTER TABLE token ADD CONSTRAINT token_role_check CHECK (role IN ('admin', 'operator', 'viewer', 'runner'));
ALTER TABLE token ADD CONSTRAINT token_hash_key UNIQUE (hash);
ALTER TABLE token ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE token ADD COLUMN last_used_ms BIGINT;
ALTER TABLE token ADD COLUMN revoked_at_ms BIGINT;
ALTER TABLE token ADD COLUMN revoked_by TEXT;

-- What an entry is about beyond its subject, for people.
ALTER TABLE audit ADD COLUMN detail TEXT NOT NULL DEFAULT '';
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_subject ON audit (subject, id);
