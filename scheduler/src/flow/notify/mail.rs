//! Mails.

use super::{Channels, Failure, Parcel};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};
use std::time::Duration;
use systole_shared::alarm::body::subject;
use systole_shared::alarm::channel::{Mail, Security};
use systole_shared::alarm::tail::shown;

pub async fn send(mail: &Mail, channels: &Channels, timeout: Duration, parcel: &Parcel<'_>) -> Result<(), Failure> {
    let message = compose(mail, parcel)?;
    let host = mail.host.as_str();
    let builder = match mail.security {
        Security::Tls => AsyncSmtpTransport::<Tokio1Executor>::relay(host),
        Security::StartTls => AsyncSmtpTransport::<Tokio1Executor>::starttls_relay(host),
        Security::Plain => Ok(AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)),
    };
    let mut builder = builder
        .map_err(|error| Failure::Again(describe(&error)))?
        .port(mail.port)
        .timeout(Some(timeout))
        .hello_name(own_name());
    if let (Some(user), Some(file)) = (&mail.user, &mail.password_file) {
        builder = builder.credentials(Credentials::new(user.clone(), channels.secret(file).await?));
    }
    match builder.build().send(message).await {
        Ok(_) => Ok(()),
        // The server says that it never will.
        Err(error) if error.is_permanent() => Err(Failure::Never(describe(&error))),
        Err(error) => Err(Failure::Again(describe(&error))),
    }
}

fn compose(mail: &Mail, parcel: &Parcel<'_>) -> Result<Message, Failure> {
    let address = |text: &str| -> Result<Mailbox, Failure> {
        text.parse()
            .map_err(|error| Failure::Never(format!("{text:?} is no mail address: {error}")))
    };
    let from = address(&mail.from)?;
    // The same delivery has the same id, however often it is sent.
    let id = format!("<{}@{}>", parcel.delivery_id, from.email.domain());
    let mut builder = Message::builder()
        .from(from)
        .subject(subject(parcel.message))
        .message_id(Some(id))
        .header(ContentType::TEXT_PLAIN);
    for to in &mail.to {
        builder = builder.to(address(to)?);
    }
    let body = format!(
        "{}\n-- \nsystole, cluster {}, delivery {}\n",
        parcel.message.text(),
        parcel.cluster_id,
        parcel.delivery_id
    );
    builder
        .body(body)
        .map_err(|error| Failure::Never(format!("the mail cannot be made: {error}")))
}

fn own_name() -> ClientId {
    match nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()) {
        Some(name) => ClientId::Domain(name),
        None => ClientId::default(),
    }
}

/// With what is behind it: the outer error alone says "connection error".
fn describe(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut inner = error.source();
    while let Some(cause) = inner {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        inner = cause.source();
    }
    shown(&texts.join(": ").replace('\n', " "))
}
