//! In which language a call is answered: that of its header `accept-language`, in gRPC as in HTTP. It is known to everything that is
//! done within the call, and to nothing that goes on beside it: logs, and what is stored, are English.

use crate::flow::Refusal;
use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;
use systole_shared::locale::Locale;

/// A longer header is not read.
const HEADER_BYTES_MAX: usize = 256;

tokio::task_local! {
    static LOCALE: Locale;
}

/// What the caller asks for.
pub fn of(headers: &HeaderMap) -> Locale {
    headers
        .get(ACCEPT_LANGUAGE)
        .filter(|value| value.len() <= HEADER_BYTES_MAX)
        .and_then(|value| value.to_str().ok())
        .map_or(Locale::En, Locale::of_header)
}

/// Answers a call in this language.
pub async fn within<F: Future>(locale: Locale, call: F) -> F::Output {
    LOCALE.scope(locale, call).await
}

/// A refusal in the language of its call.
pub fn say(refusal: &Refusal) -> String {
    let said = LOCALE.try_with(|locale| locale.say(refusal.code, &refusal.message));
    said.unwrap_or_else(|_| refusal.message.clone())
}
