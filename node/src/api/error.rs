//! Errors as the API tells them.

use crate::metrics::Metrics;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request is wrong.
    #[error("{0}")]
    BadRequest(String),
    /// No or a wrong token.
    #[error("this needs the token in the node's api.json")]
    Unauthorized,
    /// The content that was asked for is refused.
    #[error("{0}")]
    Refused(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be done in this state.
    #[error("{0}")]
    Conflict(String),
    /// This node does not do that.
    #[error("{0}")]
    Unavailable(String),
    /// Nobody on the network answered in time.
    #[error("{0}")]
    Timeout(String),
    /// The node failed.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    /// Counts refused content and says so in the log, which is where whoever did not ask himself looks.
    pub(super) fn noted(self, metrics: &Metrics) -> Self {
        if let Self::Refused(why) | Self::Conflict(why) = &self {
            tracing::warn!("content is refused: {why}");
            metrics.offence("refused_content");
        }
        self
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Refused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (
            self.status(),
            Json(serde_json::json!({ "error": self.to_string() })),
        )
            .into_response()
    }
}
