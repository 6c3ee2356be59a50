-- What keeps a host from starting anything, as its runner told it; the same in all rows of the host. No index: the rows
-- are written by every beat. fault_no rises with each change within one start of the process.
ALTER TABLE runner ADD COLUMN fault TEXT;
ALTER TABLE runner ADD COLUMN fault_detail TEXT;
ALTER TABLE runner ADD COLUMN fault_at_ms BIGINT;
ALTER TABLE runner ADD COLUMN fault_no BIGINT NOT NULL DEFAULT 0;
