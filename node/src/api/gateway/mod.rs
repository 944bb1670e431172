//! `GET /ipfs/CID/path`: a path gateway (<https://specs.ipfs.tech/http-gateways/path-gateway/>) on the local API, for
//! browsers, `curl` and programs that read over HTTP. Files come with ranges, directories as their `index.html`, as a
//! listing, or as JSON; `?format=raw` gives one block and `?format=car` the blocks that lead to the path's end and everything
//! under it, or as much as `dag-scope` and `entity-bytes` say. Other formats are refused.
//!
//! It needs no token, as a browser has none: it reads public content and changes nothing. Requests that name another
//! host than this machine are refused, so that a web page cannot reach it under a name of its own.

mod blocks;
mod car;
mod directory;
mod file;
mod range;
mod wanted;

use super::ApiError;
use super::routes::State;
use crate::content::command::PATIENCE;
use crate::content::unixfs::{EntryKind, ReadError};
use crate::content::{Cid, Content, ContentPath, DemandError, FetchError};
use axum::Router;
use axum::extract::{Path, Query, Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use std::net::IpAddr;
use wanted::Wanted;

/// Content never changes under its CID.
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=29030400, immutable");
/// What this program makes of content, which its next release may make otherwise.
const A_WEEK: HeaderValue =
    HeaderValue::from_static("public, max-age=604800, stale-while-revalidate=2678400");
/// Pages from content run no scripts on this origin, which is the API's too.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox");

pub(super) fn routes() -> Router<State> {
    Router::new()
        .route("/ipfs/{*path}", get(serve))
        .layer(middleware::from_fn(from_here))
}

/// What a request asks for.
struct Asked<'a> {
    content: &'a Content,
    path: ContentPath,
    /// What the path leads to.
    end: Cid,
    method: Method,
    headers: HeaderMap,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Options {
    format: Option<String>,
    /// Of a CAR: how much of the graph.
    dag_scope: Option<String>,
    /// Of a CAR: which bytes of a file.
    entity_bytes: Option<String>,
    car_version: Option<String>,
    car_order: Option<String>,
    car_dups: Option<String>,
    /// The name a browser saves the file under.
    filename: Option<String>,
}

/// What a response holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A file's bytes, or a directory as a page or JSON.
    Plain,
    /// One block.
    Raw,
    /// Blocks, as a CAR.
    Car(Wanted),
}

impl Format {
    /// `?format=` counts before `Accept`, which browsers always send.
    fn asked(options: &Options, headers: &HeaderMap) -> Result<Self, ApiError> {
        let unknown = |name: &str| {
            let text = format!(
                "this gateway gives no {name}: ask for format=raw or format=car, or leave the format out"
            );
            Err(ApiError::BadRequest(text))
        };
        match options.format.as_deref() {
            Some("raw") => return Ok(Self::Raw),
            Some("car") => return Wanted::asked(options, headers).map(Self::Car),
            Some(other) => return unknown(other),
            None => {}
        }
        if accepts(headers, "application/vnd.ipld.raw") {
            return Ok(Self::Raw);
        }
        if accepts(headers, "application/vnd.ipld.car") {
            return Wanted::asked(options, headers).map(Self::Car);
        }
        let refused = NEVER_GIVEN.iter().find(|kind| accepts(headers, kind));
        match refused.filter(|_| !accepts(headers, "*/*") && !accepts(headers, "text/html")) {
            Some(kind) => unknown(kind),
            None => Ok(Self::Plain),
        }
    }
}

/// Formats of the specification that this gateway does not make.
const NEVER_GIVEN: [&str; 5] = [
    "application/x-tar",
    "application/cbor",
    "application/vnd.ipld.dag-json",
    "application/vnd.ipld.dag-cbor",
    "application/vnd.ipfs.ipns-record",
];

async fn serve(
    Shared(state): Shared<State>,
    Path(path): Path<String>,
    Query(options): Query<Options>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let answer = answer(state.content()?, path, options, method, uri, headers).await;
    answer.map_err(|error| error.noted(&state.metrics))
}

async fn answer(
    content: &Content,
    path: String,
    options: Options,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let format = Format::asked(&options, &headers)?;
    let parsed: ContentPath = path
        .parse()
        .map_err(|e: ReadError| ApiError::BadRequest(e.to_string()))?;
    let mut demand = content.on_demand(PATIENCE);
    let walked = demand
        .walk(parsed.clone())
        .await
        .map_err(|error| refused(&error))?;
    let asked = Asked {
        content,
        path: parsed,
        end: walked.end,
        method,
        headers,
    };
    let mut response = match format {
        Format::Raw => blocks::raw(&asked, demand).await?,
        Format::Car(wanted) => car::serve(&asked, walked.blocks, demand, wanted).await?,
        Format::Plain => {
            let found = demand.resolve(walked.end.into()).await;
            match found.map_err(|error| refused(&error))?.kind {
                EntryKind::File => file::serve(&asked, options.filename.as_deref()).await?,
                EntryKind::Directory if !path.ends_with('/') => directory::redirect(&uri),
                EntryKind::Directory => directory::serve(asked, &path).await?,
            }
        }
    };
    let parts: Vec<String> = walked.parts.iter().map(Cid::to_string).collect();
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    for (name, value) in [("x-ipfs-path", uri.path()), ("x-ipfs-roots", &parts.join(","))] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accepted| accepted.contains(kind))
}

/// Whether the asker has this version already.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|known| {
            known
                .split(',')
                .map(|one| one.trim().trim_start_matches("W/"))
                .any(|one| one == tag || one == "*")
        })
}

fn not_modified(tag: &str, kept: HeaderValue) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    cached(&mut response, tag, kept);
    response
}

/// Says which version this is and how long it may be kept.
fn cached(response: &mut Response, tag: &str, kept: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, kept);
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
}

fn refused(error: &DemandError) -> ApiError {
    let text = error.to_string();
    match error {
        refused if refused.is_refusal() => ApiError::Refused(text),
        DemandError::Read(ReadError::NoEntry { .. }) => ApiError::NotFound(text),
        DemandError::Read(ReadError::Write { .. } | ReadError::Store(_)) => ApiError::Internal(text),
        DemandError::Read(_) => ApiError::BadRequest(text),
        DemandError::Nobody { .. } | DemandError::Fetch(FetchError::Deadline { .. }) => {
            ApiError::Timeout(text)
        }
        DemandError::Fetch(_) => ApiError::Unavailable(text),
    }
}

/// Refuses requests for other hosts: a name that somebody else points at this machine.
async fn from_here(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if host.is_none_or(is_this_machine) {
        next.run(request).await
    } else {
        ApiError::BadRequest("this gateway answers for 127.0.0.1 and localhost only".to_owned())
            .into_response()
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered_for() {
        for host in [
            "127.0.0.1:4000",
            "localhost",
            "LOCALHOST:1",
            "[::1]:80",
            "127.0.0.1",
        ] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:4000",
            "10.0.0.1:80",
            "localhost.evil.example",
            "",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_known_version_is_recognised() {
        let mut headers = HeaderMap::new();
        assert!(!is_known(&headers, "\"a\""));
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"b\", W/\"a\""));
        assert!(is_known(&headers, "\"a\""));
        assert!(!is_known(&headers, "\"c\""));
    }
}
