-- Labels of one slot beside those of its host, JSON; NULL: it has none.
ALTER TABLE runner ADD COLUMN labels TEXT;
