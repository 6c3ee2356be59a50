//! Answers that go on: what follows a task or a filter can last for days, and its token may be revoked or expire meanwhile.

use super::guard;
use crate::context::Context;
use axum::body::{Body, Bytes};
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::{Duration, Instant};
use systole_shared::policy::access::Needs;

/// How often a stream that says something is asked for its token.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Whose token this is, and what the call needs.
#[derive(Clone)]
pub struct Pass {
    pub ctx: Arc<Context>,
    pub header: Option<HeaderValue>,
    pub needs: Needs,
    pub grpc: bool,
}

/// The body ends with a refusal when its caller would not be let in any more. An answer of a known length is sent as it is.
pub fn guarded(body: Body, pass: Pass) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    Body::new(Guarded {
        body,
        pass,
        ask_at: Instant::now() + ASK_EVERY,
        over: false,
    })
}

struct Guarded {
    body: Body,
    pass: Pass,
    ask_at: Instant,
    over: bool,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let now = Instant::now();
        if now < self.ask_at || !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            return Poll::Ready(frame);
        }
        self.ask_at = now + ASK_EVERY;
        let header = self.pass.header.as_ref().and_then(|value| value.to_str().ok());
        let Err(refusal) = guard::admit(&self.pass.ctx, header, self.pass.needs) else {
            return Poll::Ready(frame);
        };
        self.over = true;
        if !self.pass.grpc {
            // The head is gone: all that is left is to break off, so that nobody takes it for whole.
            return Poll::Ready(Some(Err(axum::Error::new(refusal.message))));
        }
        let mut trailers = HeaderMap::new();
        match crate::grpc::status(&refusal).add_header(&mut trailers) {
            Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Err(status) => Poll::Ready(Some(Err(axum::Error::new(status)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
