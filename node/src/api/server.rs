//! Serving the API.

use super::routes::{self, State};
use super::token::{Place, Token};
use super::{ApiError, Config};
use crate::files::FileError;
use crate::home::Home;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Why the API does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error(
        "the API cannot listen on {address}: {source}. Choose another with --api-listen; port 0 takes any free one"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// `api.json` cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// No token can be made.
    #[error("the operating system gives no randomness: {0}")]
    Randomness(getrandom::Error),
}

/// A bound API, not serving yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    file: PathBuf,
}

impl Server {
    /// Binds, and writes address and token into the home.
    ///
    /// # Errors
    /// When the port is taken or the file cannot be written.
    pub async fn bind(config: &Config, home: &Home) -> Result<Self, ServerError> {
        let fail = |source| ServerError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let token = Token::generate().map_err(ServerError::Randomness)?;
        let file = home.api();
        Place {
            address,
            token: token.clone(),
            pid: std::process::id(),
        }
        .write(&file)?;
        Ok(Self {
            listener,
            address,
            token,
            file,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then takes the file away.
    pub async fn run(self, state: State, stop: CancellationToken) {
        let app = router(state, self.token);
        let serve = axum::serve(self.listener, app).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serve.await {
            tracing::error!(%error, "the API has stopped");
        }
        let _ = std::fs::remove_file(&self.file);
    }
}

fn router(state: State, token: Token) -> Router {
    let guard = Arc::new(token);
    let guarded = routes::commands().layer(middleware::from_fn(move |request: Request, next: Next| {
        let guard = Arc::clone(&guard);
        async move { admit(&guard, request, next).await }
    }));
    guarded
        .merge(routes::public())
        .fallback(|| async { ApiError::NotFound("no such route".to_owned()) })
        .with_state(state)
}

async fn admit(token: &Token, request: Request, next: Next) -> Response {
    let shown = request.headers().get(axum::http::header::AUTHORIZATION);
    if shown.is_some_and(|header| token.admits(header.as_bytes())) {
        next.run(request).await
    } else {
        ApiError::Unauthorized.into_response()
    }
}
