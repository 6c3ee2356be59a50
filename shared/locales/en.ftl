# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }: { $detail }

NOTFOUND_001 = the job does not exist
NOTFOUND_003 = the trigger does not exist
NOTFOUND_004 = the task does not exist or has ended
NOTFOUND_005 = the job comes from no file, or had no such version, and cannot be restored
NOTFOUND_006 = the runner does not exist
NOTFOUND_008 = the token does not exist
NOTFOUND_009 = nobody holds the lease
NOTFOUND_010 = the scheduler has no alarm channel of this name
NOTFOUND_011 = the calendar or concurrency group does not exist
VALIDATION_001 = the definition of a job, calendar or concurrency group is wrong
VALIDATION_002 = a page size or page token is out of range
VALIDATION_003 = a field of the request is wrong
VALIDATION_004 = a batch is empty or too large
CONFLICT_001 = the job runs, and its policy does not allow another run now
CONFLICT_002 = somebody else holds the lease, or it is lost
CONFLICT_004 = another process holds this runner id
CONFLICT_005 = the idempotency key was used with another body
CONFLICT_007 = a token with this name exists already
CONFLICT_008 = it is the last admin token, without which nobody could make tokens
CONFLICT_009 = it was changed since the version that the call expects
CONFLICT_010 = the host still beats, or holds tasks that nobody has said to be lost
CONFLICT_011 = the calendar or concurrency group is used
CONFLICT_012 = somebody took the lease away
UNAVAILABLE_001 = this scheduler is starting or stopping
UNAVAILABLE_003 = the database cannot be reached or is busy
UNAVAILABLE_006 = the database cannot take more: disk full or read-only
UNAVAILABLE_007 = too many requests are waiting; try again
AUTH_001 = the call carries no token, or one that is unknown, expired or revoked
AUTH_002 = the token's role does not allow this call
UNEXPECTED_001 = an error that should not happen; see the scheduler's log
