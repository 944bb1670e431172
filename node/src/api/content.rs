//! Content commands over HTTP: one JSON answer, or lines of progress and then the result.

use super::ApiError;
use super::routes::State;
use crate::content::command::{Command, CommandError, Moved};
use crate::content::store::StoreError;
use crate::content::{Content, DemandError, FetchError};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The media type of lines of JSON.
pub(super) const LINES: &str = "application/x-ndjson";
/// How often progress is told at most.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// `GET /v1/content`.
pub(super) async fn pins(Shared(state): Shared<State>) -> Result<Json<Value>, ApiError> {
    let (meter, _) = watch::channel(Moved::default());
    let pins = state.content()?.run(Command::Pins, meter).await;
    Ok(Json(pins.map_err(|error| api_error(&error))?))
}

/// `POST /v1/content`.
pub(super) async fn command(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Json(command): Json<Command>,
) -> Result<Response, ApiError> {
    let content = state.content()?.clone();
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if accepts.is_some_and(|accepted| accepted.contains(LINES)) {
        return Ok(lines(content, command, state));
    }
    let (meter, _) = watch::channel(Moved::default());
    let answer = until_stop(&state.stop, content.run(command, meter)).await;
    let answer = answer.map_err(|error| error.noted(&state.metrics))?;
    Ok(Json(answer).into_response())
}

/// Progress as `{"progress": …}`, then `{"result": …}` or `{"error": …, "status": …}`. When the asker goes away the
/// command ends.
fn lines(content: Content, command: Command, state: State) -> Response {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(4);
    tokio::spawn(async move {
        let (meter, mut moved) = watch::channel(Moved::default());
        let work = until_stop(&state.stop, content.run(command, meter));
        tokio::pin!(work);
        let mut tick = tokio::time::interval(TELL_EVERY);
        let answer = loop {
            tokio::select! {
                answer = &mut work => break answer,
                () = sender.closed() => return,
                _ = tick.tick() => if moved.has_changed().unwrap_or(false) {
                    let now = *moved.borrow_and_update();
                    // A slow reader misses some.
                    let _ = sender.try_send(Ok(line(&json!({ "progress": now }))));
                },
            }
        };
        let last = match answer.map_err(|error| error.noted(&state.metrics)) {
            Ok(result) => json!({ "result": result }),
            Err(error) => json!({ "error": error.to_string(), "status": error.status().as_u16() }),
        };
        let _ = sender.send(Ok(line(&last))).await;
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|line| (line, receiver))
    });
    ([(header::CONTENT_TYPE, LINES)], Body::from_stream(stream)).into_response()
}

fn line(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

async fn until_stop(
    stop: &CancellationToken,
    work: impl Future<Output = Result<Value, CommandError>>,
) -> Result<Value, ApiError> {
    tokio::select! {
        answer = work => answer.map_err(|error| api_error(&error)),
        () = stop.cancelled() => Err(ApiError::Unavailable("the node is shutting down".into())),
    }
}

fn api_error(error: &CommandError) -> ApiError {
    let text = error.to_string();
    match error {
        CommandError::Fetch(FetchError::NoRoom { .. }) => ApiError::Conflict(text),
        refused if refused.is_refusal() => ApiError::Refused(text),
        CommandError::Add(_) | CommandError::NoCid { .. } | CommandError::Car(_) => {
            ApiError::BadRequest(text)
        }
        CommandError::Read(_) | CommandError::Demand(DemandError::Read(_)) => ApiError::BadRequest(text),
        CommandError::Fetch(_) | CommandError::Demand(_) | CommandError::Stalled { .. } => {
            ApiError::NotFound(text)
        }
        CommandError::NotPinned { .. } | CommandError::Incomplete { .. } => ApiError::NotFound(text),
        CommandError::Offline(_) => ApiError::Unavailable(text),
        CommandError::Store(StoreError::BrokenPin { .. }) => ApiError::Conflict(text),
        CommandError::Store(_) => ApiError::Internal(text),
    }
}
