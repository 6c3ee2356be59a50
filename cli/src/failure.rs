//! Why a command failed, for a person and as an exit status. Answers of a scheduler are mapped here and
//! nowhere else.

use crate::exit_code;
use crate::url::Url;
use std::error::Error as _;
use std::fmt;
use systole_proto::convert::{ERROR_CODE_KEY, ERROR_FIELD_KEY};
use systole_proto::v1;
use systole_shared::error::{Code, Invalid, Kind};
use systole_shared::locale::Locale;
use tonic::Status;

pub use systole_scheduler::job_files::io_cause;

/// A sentence with the remedy, the catalogue code where there is one, and the exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: u8,
    pub message: String,
    pub code: Option<String>,
}

impl Failure {
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            code: None,
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(exit_code::USAGE, message)
    }

    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(exit_code::REFUSED, message)
    }

    /// Something on this machine failed that has no exit status of its own.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Self::new(exit_code::NO, message)
    }

    /// As a command tells it that ends like a task, of the call that begins it.
    pub fn of_start(self) -> Self {
        Self {
            exit: exit_code::of_start(self.exit),
            ..self
        }
    }

    pub fn with_code(mut self, code: Code) -> Self {
        self.code = Some(code.name().to_owned());
        self
    }

    /// Nobody answers at `url`.
    pub fn no_scheduler(url: &Url, cause: &str) -> Self {
        let cause = cause.trim_end_matches('.');
        let host = &url.host;
        let message = match what_is_wrong(cause, url.secure) {
            Wrong::Nobody => format!("no scheduler at {url}: {cause}. Start one: `systole up`; elsewhere: --url."),
            Wrong::Plaintext => {
                format!("what listens at {url} does not speak TLS. Write http:// if it is a scheduler without TLS.")
            }
            Wrong::Tls => format!(
                "no scheduler at {url}: what listens there does not speak plain gRPC ({cause}). Write https:// if it is a scheduler with TLS."
            ),
            Wrong::Issuer => {
                format!("the certificate of {url} is not trusted here. Name the authority that signed it: --ca FILE.")
            }
            Wrong::Name => format!(
                "the certificate of {url} is for another name than {host}. Use a name that is in it, or make one for {host}."
            ),
            Wrong::AuthorityItself => format!(
                "the certificate of {url} is a certificate authority itself (CA:TRUE), which no client accepts. Make one with basicConstraints CA:FALSE."
            ),
            Wrong::Early => format!(
                "the certificate of {url} is not valid yet by the clock of this machine. Is the clock right? `date`; `systole doctor` compares it."
            ),
            Wrong::Expired => format!(
                "the certificate of {url} has expired, or the clock of this machine is ahead. `date`; if it is right, the scheduler needs another certificate."
            ),
            Wrong::Certificate => format!("no trusted TLS connection to {url}: {cause}."),
        };
        Self::new(exit_code::UNREACHABLE, message)
    }

    /// One item of a batch was refused.
    pub fn from_item(error: &v1::ItemError) -> Self {
        Self {
            exit: exit_of_kind(Code::parse(&error.code).map(Code::kind)),
            message: with_field(&error.code, &error.field, &error.message),
            code: (!error.code.is_empty()).then(|| error.code.clone()),
        }
    }

    /// A whole call failed.
    pub fn from_status(status: &Status, url: &Url) -> Self {
        match metadata(status, ERROR_CODE_KEY) {
            Some(code) => {
                let field = metadata(status, ERROR_FIELD_KEY).unwrap_or_default();
                Self {
                    exit: exit_of_kind(Code::parse(&code).map(Code::kind)),
                    message: with_request(with_field(&code, &field, status.message()), &code, status),
                    code: Some(code),
                }
            }
            None if is_connection_loss(status) => Self::no_scheduler(url, &cause(status)),
            None if status.code() == tonic::Code::Unimplemented => Self::new(
                exit_code::REFUSED,
                format!(
                    "what answers at {url} does not know this call: it is a scheduler of an earlier version than this systole ({}), or none at all. Use the systole of its version, or upgrade the scheduler",
                    env!("CARGO_PKG_VERSION")
                ),
            ),
            None => Self::new(
                exit_of_status(status.code()),
                format!("{url} answered: {} ({:?})", status.message(), status.code()),
            ),
        }
    }
}

/// Of what should not happen the scheduler's log knows more; this is how to find it there.
fn with_request(message: String, code: &str, status: &Status) -> String {
    match metadata(status, "x-request-id") {
        Some(id) if code == Code::Unexpected.name() => format!("{message} (request {id} in the scheduler's log)"),
        _ => message,
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        let code = Code::InvalidField;
        Self::usage(with_field(code.name(), &invalid.field, &invalid.message)).with_code(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.message.ends_with(['.', '!', '?']) {
            f.write_str(".")?;
        }
        match &self.code {
            Some(code) => write!(f, " [{code}]"),
            None => Ok(()),
        }
    }
}

/// What keeps us from a scheduler, as far as the error tells.
enum Wrong {
    Nobody,
    /// TLS is spoken to somebody who does not.
    Plaintext,
    /// Plain HTTP is spoken to somebody who wants TLS, or something else.
    Tls,
    Issuer,
    Name,
    AuthorityItself,
    Early,
    Expired,
    Certificate,
}

fn what_is_wrong(cause: &str, secure: bool) -> Wrong {
    let has = |text: &str| cause.contains(text);
    if secure && has("InvalidContentType") {
        Wrong::Plaintext
    } else if !secure && (has("frame with invalid size") || has("http2 error") || has("invalid HTTP")) {
        Wrong::Tls
    } else if has("UnknownIssuer") {
        Wrong::Issuer
    } else if has("NotValidForName") || has("not valid for name") {
        Wrong::Name
    } else if has("CaUsedAsEndEntity") {
        Wrong::AuthorityItself
    } else if has("NotValidYet") || has("not valid yet") {
        Wrong::Early
    } else if has("Expired") || has("certificate expired") {
        Wrong::Expired
    } else if has("certificate") {
        Wrong::Certificate
    } else {
        Wrong::Nobody
    }
}

fn exit_of_kind(kind: Option<Kind>) -> u8 {
    match kind {
        Some(Kind::Validation) => exit_code::USAGE,
        Some(Kind::NotFound) => exit_code::NOT_FOUND,
        Some(Kind::Denied | Kind::Conflict) => exit_code::REFUSED,
        // An error that should not happen is no answer either: "it worked, the answer is no" would be a lie.
        Some(Kind::Unavailable | Kind::Exhausted | Kind::Unexpected) | None => exit_code::UNREACHABLE,
    }
}

/// For an answer without a catalogue code: from a proxy, or from the gRPC library itself.
fn exit_of_status(code: tonic::Code) -> u8 {
    match code {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange => exit_code::USAGE,
        tonic::Code::NotFound => exit_code::NOT_FOUND,
        tonic::Code::Unauthenticated
        | tonic::Code::PermissionDenied
        | tonic::Code::AlreadyExists
        | tonic::Code::FailedPrecondition
        | tonic::Code::Unimplemented => exit_code::REFUSED,
        _ => exit_code::UNREACHABLE,
    }
}

fn metadata(status: &Status, key: &str) -> Option<String> {
    let value = status.metadata().get(key)?.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// The catalogue code that a scheduler sent.
pub fn code_of(status: &Status) -> Option<Code> {
    metadata(status, ERROR_CODE_KEY).and_then(|name| Code::parse(&name))
}

/// The connection failed, not the call: nobody answered, or the answer broke off.
fn is_connection_loss(status: &Status) -> bool {
    metadata(status, ERROR_CODE_KEY).is_none()
        && (matches!(status.code(), tonic::Code::Unavailable | tonic::Code::DeadlineExceeded)
            || status.source().is_some())
}

/// The same call may well succeed in a moment, at this scheduler or at another.
pub fn is_transient(status: &Status) -> bool {
    match code_of(status) {
        Some(code) => matches!(code, Code::Draining | Code::StoreUnreachable | Code::Overloaded),
        None => is_connection_loss(status),
    }
}

/// True when nobody listens there.
pub fn is_refused_connection(status: &Status) -> bool {
    find_source::<std::io::Error>(status).is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn find_source<E: std::error::Error + 'static>(status: &Status) -> Option<&E> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// What lies behind a broken connection, in the fewest words.
pub fn cause(status: &Status) -> String {
    if let Some(io) = find_source::<std::io::Error>(status) {
        return io_cause(io);
    }
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    if text.is_empty() { "no answer".into() } else { text }
}

/// The option that a field of the contract comes from, as the user wrote it. Empty: it has no name there, and what is said of it
/// repeats its value.
fn option_of(field: &str) -> String {
    let field = field.rsplit_once("spec.").map_or(field, |(_, rest)| rest);
    let field = field.strip_prefix("filter.").unwrap_or(field);
    let field = match field.split_once("].") {
        Some((items, rest)) if items.starts_with("items[") => rest,
        _ => field,
    };
    let (name, index) = match field.split_once('[') {
        Some((name, rest)) => (name, rest.trim_end_matches(']')),
        None => (field, ""),
    };
    match name {
        "command" => match index {
            "" => "the command".into(),
            "0" => "the program".into(),
            n => format!("argument {n}"),
        },
        "timeout_ms" | "queue_timeout_ms" | "start_timeout_ms" | "silence_timeout_ms" | "warn_signal"
        | "warn_before_ms" | "kill_signal" | "kill_grace_ms" | "on_disconnect" | "on_runner_restart" => {
            format!("--{}", name.trim_end_matches("_ms").replace('_', "-"))
        }
        "limits.open_files" => "--limit-open-files".into(),
        "limits.core_bytes" => "--limit-core".into(),
        "limits.file_bytes" => "--limit-file".into(),
        "limits.nice" => "--nice".into(),
        "output.max_bytes" => "--output-max".into(),
        "output.on_limit" => "--output-on-limit".into(),
        "output.keep_ms" => "--output-keep".into(),
        "limits.memory" => "--memory".into(),
        "limits.cpus" => "--cpus".into(),
        "limits.pids" => "--pids".into(),
        "run_at_ms" => "--at".into(),
        "delay_ms" => "--delay".into(),
        "tags" | "tag" => "--tag".into(),
        "states" => "--state".into(),
        "callback_url" => "--callback".into(),
        "retry.max_retries" => "--retry".into(),
        "retry.delay_ms" => "--retry-delay".into(),
        "target_host" | "target_slot" | "target" | "runner" | "runners" => "--runner".into(),
        "name" | "queue" | "require" | "env" | "dir" | "priority" | "key" | "reason" | "job" | "umask" | "user"
        | "group" => {
            format!("--{name}")
        }
        "env_file" => "--env-file".into(),
        "ids" => "TASK".into(),
        "unique_key" => "--unique".into(),
        "names" => "NAME".into(),
        "valid_for_ms" => "--expires".into(),
        "until_ms" | "until" => "--until".into(),
        "ttl_ms" => "--ttl".into(),
        "resource" | "channel" | "join_token" => String::new(),
        other => other.to_owned(),
    }
}

/// Puts the option in front of the sentence, unless the sentence already begins with the field.
fn with_field(code: &str, field: &str, message: &str) -> String {
    // A sentence about a task or a job, or about what there is not, names it: "no task 9999 (newest is 2210)", in whatever language
    // it begins.
    let detail = Code::parse(code).map_or(message, |code| Locale::detail(code, message));
    let speaks_for_itself = ["no ", "task ", "the token ", "there is no "]
        .iter()
        .any(|begin| detail.starts_with(begin));
    if field.is_empty() || speaks_for_itself {
        return message.to_owned();
    }
    let message = message
        .strip_prefix(field)
        .map_or(message, |rest| rest.strip_prefix(": ").unwrap_or(message));
    match option_of(field) {
        option if option.is_empty() => message.to_owned(),
        option => format!("{option}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        Url::parse("http://127.0.0.1:7410").expect("valid")
    }

    fn answer(code: &str, field: &str, message: &str) -> Status {
        let mut status = Status::invalid_argument(message);
        for (key, value) in [(ERROR_CODE_KEY, code), (ERROR_FIELD_KEY, field)] {
            if !value.is_empty() {
                status.metadata_mut().insert(key, value.parse().expect("ascii"));
            }
        }
        status
    }

    #[test]
    fn a_refusal_names_the_option_and_the_code() {
        let status = answer("VALIDATION_003", "items[0].spec.timeout_ms", "is longer than 366 days");
        let failure = Failure::from_status(&status, &url());
        assert_eq!(
            failure.to_string(),
            "--timeout: is longer than 366 days. [VALIDATION_003]"
        );
        assert_eq!(failure.exit, 2);
    }

    #[test]
    fn a_field_that_the_message_repeats_is_said_once() {
        let status = answer("VALIDATION_003", "queue", "queue: \"A B\" is no word");
        assert_eq!(
            Failure::from_status(&status, &url()).message,
            "--queue: \"A B\" is no word"
        );
    }

    #[test]
    fn a_sentence_about_a_task_needs_no_option() {
        let status = answer("NOTFOUND_004", "ids", "no task 99 (the newest is 6). See `systole ls`");
        let failure = Failure::from_status(&status, &url());
        assert_eq!(
            failure.to_string(),
            "no task 99 (the newest is 6). See `systole ls`. [NOTFOUND_004]"
        );
        let french = Locale::Fr.say(Code::TaskNotFound, "no task 99");
        let french_status = answer("NOTFOUND_004", "ids", &french);
        assert_eq!(Failure::from_status(&french_status, &url()).message, french);
        assert_eq!(failure.exit, 3);
    }

    #[test]
    fn what_was_typed_without_an_option_has_none_in_front() {
        for (code, field, message) in [
            ("CONFLICT_002", "resource", "disk is held by w since 02:30"),
            (
                "NOTFOUND_010",
                "channel",
                "this scheduler has no alarm channel \"x\"; it has y",
            ),
            ("AUTH_001", "join_token", "this line was used at 02:30"),
            ("NOTFOUND_011", "name", "there is no concurrency group \"x\""),
        ] {
            assert_eq!(
                Failure::from_status(&answer(code, field, message), &url()).message,
                message
            );
        }
    }

    #[test]
    fn every_code_has_the_exit_status_of_its_kind() {
        for &code in Code::ALL {
            let exit = Failure::from_status(&answer(code.name(), "", "x"), &url()).exit;
            let expected = match code.kind() {
                Kind::Validation => 2,
                Kind::NotFound => 3,
                Kind::Denied | Kind::Conflict => 4,
                Kind::Unavailable | Kind::Exhausted | Kind::Unexpected => 5,
            };
            assert_eq!(exit, expected, "{code}");
        }
    }

    #[test]
    fn no_answer_is_unreachable_and_says_what_to_do() {
        let failure = Failure::from_status(&Status::unavailable("connection refused"), &url());
        assert_eq!(
            failure.to_string(),
            "no scheduler at http://127.0.0.1:7410: connection refused. Start one: `systole up`; elsewhere: --url."
        );
        assert_eq!(failure.exit, 5);
    }

    #[test]
    fn trouble_with_tls_has_its_own_remedy() {
        let https = Url::parse("https://h:1").expect("valid");
        for (url, cause, remedy) in [
            (&https, "invalid peer certificate: UnknownIssuer", "--ca FILE"),
            (
                &https,
                "invalid peer certificate: NotValidForName",
                "for another name than h",
            ),
            (
                &https,
                "invalid peer certificate: certificate not valid for name \"h\"",
                "for another name than h",
            ),
            (
                &https,
                "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "CA:FALSE",
            ),
            (&https, "invalid peer certificate: Expired", "has expired"),
            (
                &https,
                "invalid peer certificate: certificate not valid yet: verification time 1",
                "Is the clock right?",
            ),
            (
                &https,
                "received corrupt message of type InvalidContentType",
                "Write http://",
            ),
            (
                &url(),
                "connection error detected: frame with invalid size",
                "Write https://",
            ),
        ] {
            let failure = Failure::no_scheduler(url, cause);
            assert!(failure.message.contains(remedy), "{failure}");
            assert_eq!(failure.exit, 5);
        }
    }

    #[test]
    fn only_answers_that_may_change_soon_are_transient() {
        assert!(is_transient(&answer("UNAVAILABLE_001", "", "draining")));
        assert!(is_transient(&Status::unavailable("gone")));
        assert!(!is_transient(&answer("UNAVAILABLE_006", "", "disk full")));
        assert!(!is_transient(&answer("VALIDATION_003", "name", "bad")));
        assert!(!is_transient(&Status::unimplemented("what?")));
    }

    #[test]
    fn fields_become_options() {
        for (field, option) in [
            ("command", "the command"),
            ("command[0]", "the program"),
            ("command[2]", "argument 2"),
            ("tags[1]", "--tag"),
            ("env[0]", "--env"),
            ("run_at_ms", "--at"),
            ("timeout_ms", "--timeout"),
            ("queue_timeout_ms", "--queue-timeout"),
            ("kill_grace_ms", "--kill-grace"),
            ("kill_signal", "--kill-signal"),
            ("on_runner_restart", "--on-runner-restart"),
            ("retry.delay_ms", "--retry-delay"),
            ("target_slot", "--runner"),
            ("items[3].key", "--key"),
            ("filter.runner", "--runner"),
            ("until_ms", "--until"),
            ("ttl_ms", "--ttl"),
        ] {
            assert_eq!(option_of(field), option);
        }
    }

    /// Every code of the catalogue as a person sees it: what it says, its code, and the exit status.
    #[test]
    fn the_errors_of_the_catalogue_are_as_they_were() {
        let mut text = String::new();
        for &code in Code::ALL {
            let failure = Failure::from_item(&v1::ItemError {
                code: code.name().into(),
                message: code.meaning().into(),
                field: String::new(),
            });
            text.push_str(&format!("error: {failure}  (exit {})\n", failure.exit));
        }
        crate::golden::check("errors", &text);
    }

    #[test]
    fn the_errors_of_this_command_are_as_they_were() {
        let https = Url::parse("https://h:1").expect("valid");
        let mut text = String::new();
        for failure in [
            Failure::no_scheduler(&url(), "connection refused"),
            Failure::no_scheduler(&https, "received corrupt message of type InvalidContentType"),
            Failure::no_scheduler(&url(), "connection error detected: frame with invalid size"),
            Failure::no_scheduler(&https, "invalid peer certificate: UnknownIssuer"),
            Failure::no_scheduler(&https, "invalid peer certificate: NotValidForName"),
            Failure::no_scheduler(&https, "CaUsedAsEndEntity"),
            Failure::no_scheduler(&https, "invalid peer certificate: Expired"),
            Failure::no_scheduler(
                &https,
                "invalid peer certificate: certificate not valid yet: verification time 1",
            ),
            Failure::from_status(&Status::unimplemented(""), &url()),
            Failure::from_status(&Status::internal("a proxy says no"), &url()),
            Failure::from_status(
                &answer("VALIDATION_003", "items[0].spec.timeout_ms", "is longer than 366 days"),
                &url(),
            ),
        ] {
            text.push_str(&format!("error: {failure}  (exit {})\n", failure.exit));
        }
        crate::golden::check("errors_of_the_client", &text);
    }
}
