//! Files, whole or a range of them, streamed as they are read or arrive.

use super::range::{self, Part};
use super::{Asked, FOREVER, SANDBOX, cached, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::command::PATIENCE;
use crate::content::unixfs::escape_url;
use crate::content::{ContentPath, DemandError, Fetch, FetchRequest, FileStream, Pin};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::ops::Range;
use std::time::Duration;

/// How long a file that is not here yet may take to arrive.
const FETCH_DEADLINE: Duration = Duration::from_secs(12 * 3600);

pub(super) async fn serve(asked: &Asked<'_>, filename: Option<&str>) -> Result<Response, ApiError> {
    let tag = format!("\"{}\"", asked.end);
    if is_known(&asked.headers, &tag) {
        return Ok(not_modified(&tag, FOREVER));
    }
    let path = ContentPath::from(asked.end);
    let size = asked
        .content
        .on_demand(PATIENCE)
        .file_size(path.clone())
        .await
        .map_err(|error| refused(&error))?;
    let part = range::parse(wanted_range(asked, &tag), size);
    let (status, first, length) = match part {
        Part::Whole => (StatusCode::OK, 0, size),
        Part::Bytes(first, last) => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        Part::Outside => {
            let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, range).into_response());
        }
    };
    let body = if asked.method == Method::HEAD || length == 0 {
        Body::empty()
    } else {
        body(asked, path, part, first..first + length).await?
    };
    let mut response = (status, body).into_response();
    cached(&mut response, &tag, FOREVER);
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(
        header::CONTENT_TYPE,
        kind(filename.or(asked.path.names.last().map(String::as_str))),
    );
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{}/{size}", first + length - 1))
    {
        headers.insert(header::CONTENT_RANGE, range);
    }
    if let Some(name) = filename
        && let Ok(shown) = HeaderValue::from_str(&format!("inline; filename*=UTF-8''{}", escape_url(name)))
    {
        headers.insert(header::CONTENT_DISPOSITION, shown);
    }
    Ok(response)
}

/// The range, unless `If-Range` names another version.
fn wanted_range<'a>(asked: &'a Asked<'_>, tag: &str) -> Option<&'a str> {
    let text = |name| asked.headers.get(name).and_then(|value| value.to_str().ok());
    text(header::RANGE).filter(|_| text(header::IF_RANGE).is_none_or(|version| version == tag))
}

/// The media type by the name's ending.
fn kind(name: Option<&str>) -> HeaderValue {
    let guess = name.and_then(|name| mime_guess::from_path(name).first());
    let text = guess.map_or("application/octet-stream".to_owned(), |kind| {
        if kind.type_() == mime_guess::mime::TEXT {
            format!("{kind}; charset=utf-8")
        } else {
            kind.to_string()
        }
    });
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

/// A file on its way out.
struct Outgoing {
    stream: FileStream,
    /// A whole file is fetched ahead of the reader, from several peers at once; a range block by block.
    _ahead: Option<Fetch>,
}

async fn body(asked: &Asked<'_>, path: ContentPath, part: Part, bytes: Range<u64>) -> Result<Body, ApiError> {
    let ahead = (part == Part::Whole).then(|| {
        asked.content.fetch_dag(FetchRequest {
            root: asked.end,
            providers: Vec::new(),
            deadline: FETCH_DEADLINE,
            pin: Pin::No,
        })
    });
    let stream = asked
        .content
        .stream(path, bytes, PATIENCE)
        .await
        .map_err(|error| refused(&error))?;
    let outgoing = Outgoing {
        stream,
        _ahead: ahead,
    };
    Ok(Body::from_stream(futures::stream::try_unfold(outgoing, next)))
}

async fn next(mut outgoing: Outgoing) -> Result<Option<(Bytes, Outgoing)>, DemandError> {
    let next = outgoing.stream.next().await.inspect_err(|error| {
        // The asker sees a body that is too short.
        tracing::info!(%error, "a file could not be served to its end");
    })?;
    Ok(next.map(|bytes| (bytes, outgoing)))
}
