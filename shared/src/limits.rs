//! Every bound of the product, with its unit last in the name. Public interfaces state them.

/// Elements of a command: program and arguments.
pub const COMMAND_ELEMENTS_MAX: usize = 10_000;
/// One argument; Linux refuses more than 128 KiB (`MAX_ARG_STRLEN`), its final NUL included.
pub const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;
/// All arguments and variables together; leaves room below the usual `ARG_MAX` of 2 MiB.
pub const COMMAND_BYTES_MAX: usize = 1024 * 1024;
/// Environment variables of one task.
pub const ENV_VARS_MAX: usize = 1_000;
/// Name of an environment variable.
pub const ENV_NAME_BYTES_MAX: usize = 255;
/// Name of a task.
pub const NAME_CHARS_MAX: usize = 200;
/// Queue, tag, label key, host name.
pub const WORD_CHARS_MAX: usize = 63;
/// Value of a label.
pub const LABEL_VALUE_BYTES_MAX: usize = 127;
/// Labels that one task may require.
pub const REQUIRE_MAX: usize = 32;
/// Labels that one runner may have.
pub const LABELS_MAX: usize = 64;
/// Queues that one runner may serve.
pub const QUEUES_MAX: usize = 32;
/// Tags of one task.
pub const TAGS_MAX: usize = 32;
/// Working directory and callback URL.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Free-text reason of a change.
pub const REASON_CHARS_MAX: usize = 500;
/// Idempotency key.
pub const KEY_CHARS_MAX: usize = 200;
/// How long an idempotency key is remembered, ms (7 days).
pub const KEY_KEEP_MS: i64 = 7 * 24 * 3_600_000;
/// Highest priority; the lowest is 0.
pub const PRIORITY_MAX: u32 = 9;
/// Priority of a task that names none.
pub const PRIORITY_DEFAULT: u32 = 5;
/// Highest number of retries.
pub const RETRIES_MAX: u32 = 100;
/// What `route_key` of a job may have.
pub const ROUTE_KEY_CHARS_MAX: usize = 200;
/// Longest retry delay, timeout and start delay, ms (366 days).
pub const DURATION_MS_MAX: u64 = 366 * 24 * 3_600_000;
/// Shortest timeout of any kind, ms.
pub const TIMEOUT_MS_MIN: u64 = 1;
/// Longest time from the first signal to SIGKILL, ms (24 h).
pub const KILL_GRACE_MS_MAX: u64 = 24 * 3_600_000;
/// From the first signal to SIGKILL, ms, where neither the task nor its runner says otherwise.
pub const KILL_GRACE_MS_DEFAULT: u64 = 10_000;
/// Open descriptors that a task may be limited to; with fewer hardly a program starts.
pub const OPEN_FILES_MIN: u32 = 16;
/// The most that a kernel can be told to allow.
pub const OPEN_FILES_MAX: u32 = 1 << 30;
/// Largest core file that a task may ask for (1 PiB).
pub const CORE_BYTES_MAX: u64 = 1 << 50;
/// Largest file that a task may be limited to (1 PiB).
pub const FILE_BYTES_MAX: u64 = 1 << 50;
/// The highest nice value of Linux; the lowest of a task is 0.
pub const NICE_MAX: u32 = 19;
/// Memory that a task may be limited to; with less no program starts.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// Most memory that a task may be limited to (1 PiB).
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;
/// Share of processors that a task may be limited to, in thousandths of one.
pub const CPU_MILLIS_MIN: u32 = 10;
/// The most: 4,096 processors.
pub const CPU_MILLIS_MAX: u32 = 4_096_000;
/// The highest number of processes and threads that Linux can have.
pub const PIDS_MAX: u32 = 4_194_304;
/// All permission bits of a umask.
pub const UMASK_MAX: u32 = 0o777;
/// The umask of a task that names none.
pub const UMASK_DEFAULT: u32 = 0o022;
/// Name of a user or group of a host.
pub const ACCOUNT_CHARS_MAX: usize = 63;
/// A file of variables on a runner's host.
pub const ENV_FILE_BYTES_MAX: u64 = 256 * 1024;
/// A host's policy file.
pub const POLICY_BYTES_MAX: u64 = 1024 * 1024;
/// Signals that are kept of the end of a task.
pub const END_SIGNALS_MAX: usize = 32;
/// Free text that is kept of the end of a task beside its message.
pub const END_NOTE_BYTES_MAX: usize = 1_024;
/// How far in the past a start time may lie, ms; more is taken for a mistake.
pub const RUN_AT_PAST_MS_MAX: i64 = 60_000;
/// Items of one batch call.
pub const BATCH_ITEMS_MAX: usize = 10_000;
/// Ids of one Get or Watch.
pub const GET_IDS_MAX: usize = 1_000;
/// Tasks of one page.
pub const PAGE_MAX: usize = 1_000;
/// Tasks of one page when the caller names no number.
pub const PAGE_DEFAULT: usize = 100;
/// Live tasks that one Watch by filter follows.
pub const WATCH_TASKS_MAX: usize = 10_000;
/// Slots of one host.
pub const SLOTS_MAX: u32 = 4_096;
/// Results that one beat may carry.
pub const RESULTS_PER_BEAT_MAX: usize = 16;
/// Output that may ride on a beat with its result, both streams together.
pub const OUTPUT_IN_BEAT_BYTES_MAX: usize = 16 * 1024;
/// One piece of output.
pub const OUTPUT_CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Pieces of output of one upload.
pub const OUTPUT_CHUNKS_PER_UPLOAD_MAX: usize = 16;
/// Stored output of each stream of a task that does not say otherwise.
pub const OUTPUT_MAX_BYTES_DEFAULT: u64 = 8 * 1024 * 1024;
/// The least that a task may ask for; what rides on a beat with its result is never more.
pub const OUTPUT_MAX_BYTES_MIN: u64 = 16 * 1024;
/// The most that a task may ask for.
pub const OUTPUT_MAX_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Longest time a beat may be parked, ms.
pub const PARK_MS_MAX: u64 = 60_000;
/// A heartbeat message (its results and their output included).
pub const BEAT_BYTES_MAX: usize = 512 * 1024;
/// Beats of idle slots that come together.
pub const IDLE_BEATS_MAX: usize = 256;
/// A message of the task service.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Redeliveries of a task whose RUN_NEW was not taken up.
pub const REDELIVERIES_MAX: u32 = 3;
/// Replacements of a task that never started through no fault of its command.
pub const REPLACEMENTS_MAX: u32 = 3;
/// Deliveries of one callback before it is given up.
pub const CALLBACK_TRIES_MAX: u32 = 8;
/// Fires of one backfill, those of the same time that are left out included.
pub const BACKFILL_FIRES_MAX: usize = 10_000;
/// For how long a lease stays without a renewal, ms.
pub const LEASE_TTL_MS_MIN: u64 = 3_000;
pub const LEASE_TTL_MS_MAX: u64 = 24 * 3_600_000;
pub const LEASE_TTL_MS_DEFAULT: u64 = 30_000;
/// What the holder of a lease calls itself.
pub const HOLDER_CHARS_MAX: usize = 200;
/// Leases, those that nobody holds included until they are forgotten.
pub const LEASES_MAX: usize = 100_000;
/// How long a lease that nobody holds is kept, ms (a day).
pub const LEASE_KEEP_MS: i64 = 24 * 3_600_000;
/// Calls that wait for leases at one replica.
pub const LEASE_WAITERS_MAX: usize = 1_000;
/// Freezes in force at once.
pub const FREEZES_MAX: usize = 100;
/// Tokens of one cluster, revoked and expired ones included until they are forgotten.
pub const TOKENS_MAX: usize = 1_000;
/// How far past the newest task id of the database a host may say to have held a task: what lies further on is no id that a
/// database ever gave, but a damaged file or a forged call, and ids are not moved past it.
pub const AHEAD_IDS_MAX: i64 = 1_000_000_000;
/// How long a host may join with a join token, ms (15 minutes).
pub const JOIN_VALID_MS: i64 = 15 * 60_000;
/// How often a host that joined gives its token another secret, ms (7 days).
pub const ROTATE_EVERY_MS: u64 = 7 * 24 * 3_600_000;
/// How long a used or expired join token is known, so that who comes late is told why, ms (1 day).
pub const JOIN_GONE_KEEP_MS: i64 = 24 * 3_600_000;
/// Join tokens at once, used and expired ones included until they are forgotten.
pub const JOIN_TOKENS_MAX: i64 = 5_000;
/// How long a revoked or expired token is listed, ms (30 days).
pub const TOKEN_GONE_KEEP_MS: i64 = 30 * 24 * 3_600_000;
/// Calls under way at once on one connection.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 20_000;
/// Free text that a runner reports about a failure.
pub const MESSAGE_CHARS_MAX: usize = 1_000;
/// A cron expression.
pub const CRON_BYTES_MAX: usize = 1_000;
/// A recurrence rule.
pub const RRULE_BYTES_MAX: usize = 2_000;
/// Dates, ranges and windows of one calendar, events of its file and their repetitions included.
pub const CALENDAR_ENTRIES_MAX: usize = 10_000;
/// An iCalendar file.
pub const ICS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Rows of slots that did not fire, of one plan of a trigger.
pub const RANGES_PER_PLAN_MAX: usize = 1_000;
/// Shortest period of a fixed rate and shortest delay between runs, ms.
pub const PERIOD_MS_MIN: i64 = 1_000;
/// Longest jitter of a trigger, ms (24 h).
pub const JITTER_MS_MAX: u64 = 24 * 3_600_000;
/// Missed fires that `catch_up` makes up when the trigger names no number.
pub const CATCH_UP_DEFAULT: u64 = 100;
/// The largest number that it may name.
pub const CATCH_UP_MAX: u64 = 10_000;
/// Triggers of one job.
pub const TRIGGERS_PER_JOB_MAX: usize = 100;
/// Alarms of one job.
pub const ALARMS_PER_JOB_MAX: usize = 32;
/// Channels that one alarm of a job names.
pub const ALARM_CHANNELS_MAX: usize = 16;
/// Failures in a row that an alarm of a job may wait for.
pub const IN_A_ROW_MAX: u32 = 1_000;
/// Tasks that one alarm keeps by name; more are counted.
pub const ALARM_TASKS_MAX: usize = 50;
/// Deliveries of one alarm to one channel before it is given up: within some three and a half hours.
pub const ALARM_TRIES_MAX: u32 = 12;
/// Channels of one file.
pub const CHANNELS_MAX: usize = 1_000;
/// A file of channels.
pub const CHANNELS_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// A secret of a channel.
pub const CHANNEL_SECRET_BYTES_MAX: u64 = 16 * 1024;
/// Recipients of one channel of mails.
pub const MAIL_RECIPIENTS_MAX: usize = 100;
/// Lines of output in an alarm of a channel that names no number.
pub const ALARM_OUTPUT_LINES_DEFAULT: usize = 10;
/// The most that a channel may ask for.
pub const ALARM_OUTPUT_LINES_MAX: usize = 100;
/// Description of a job or trigger.
pub const DESCRIPTION_CHARS_MAX: usize = 1_000;
/// Data of a job, a trigger or a request, and of all of them together, as JSON.
pub const DATA_BYTES_MAX: usize = 64 * 1024;
/// Occurrences that may wait for a job.
pub const WAITING_MAX: u32 = 10_000;
/// Occurrences that may wait for a job that names no number.
pub const WAITING_DEFAULT: u32 = 100;
/// Highest `max_concurrent` of a job and highest limit of a concurrency group.
pub const CONCURRENT_MAX: u32 = 100_000;
/// Replacements of a task whose host was lost that a job may ask for.
pub const RECOVERIES_MAX: u32 = 100;
/// A job file.
pub const JOB_FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
