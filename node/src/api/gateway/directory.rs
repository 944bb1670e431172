//! Directories: their `index.html`, or what is in them.

use super::{A_WEEK, Asked, SANDBOX, accepts, cached, file, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::ContentPath;
use crate::content::command::PATIENCE;
use crate::content::unixfs::{Entry, EntryKind, escape_url};
use axum::Json;
use axum::http::{Uri, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde_json::{Value, json};
use std::fmt::Write as _;

const INDEX: &str = "index.html";

/// To the same path with a slash behind it, so that relative links work.
pub(super) fn redirect(uri: &Uri) -> Response {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Redirect::permanent(&format!("{}/{query}", uri.path())).into_response()
}

pub(super) async fn serve(mut asked: Asked<'_>, shown: &str) -> Result<Response, ApiError> {
    let directory = asked.end;
    let entries = asked
        .content
        .on_demand(PATIENCE)
        .ls(directory.into())
        .await
        .map_err(|error| refused(&error))?;
    let index = entries.iter().find(|entry| entry.name == INDEX);
    let as_json = accepts(&asked.headers, "application/json");
    if let (Some(index), false) = (index, as_json) {
        let found = asked
            .content
            .on_demand(PATIENCE)
            .resolve(ContentPath::from(index.cid))
            .await
            .map_err(|error| refused(&error))?;
        if found.kind == EntryKind::File {
            asked.end = found.cid;
            asked.path = asked.path.join(INDEX);
            return file::serve(&asked, None).await;
        }
    }
    let kind = if as_json { "json" } else { "html" };
    let tag = format!("\"DirIndex-{}-{directory}.{kind}\"", env!("CARGO_PKG_VERSION"));
    if is_known(&asked.headers, &tag) {
        return Ok(not_modified(&tag, A_WEEK));
    }
    let mut response = if as_json {
        Json(rows(&entries)).into_response()
    } else {
        Html(page(&entries, shown.trim_end_matches('/'))).into_response()
    };
    cached(&mut response, &tag, A_WEEK);
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    Ok(response)
}

fn rows(entries: &[Entry]) -> Value {
    entries
        .iter()
        .map(|entry| json!({ "name": entry.name, "cid": entry.cid.to_string(), "size": entry.declared_size }))
        .collect()
}

fn page(entries: &[Entry], path: &str) -> String {
    let mut rows = String::new();
    for entry in entries {
        let (link, name) = (escape_url(&entry.name), escape_html(&entry.name));
        let size = indicatif::HumanBytes(entry.declared_size);
        // Writing to a string does not fail.
        let _ = writeln!(
            rows,
            "<tr><td><a href=\"{link}\">{name}</a><td>{size}<td><code>{}</code>",
            entry.cid
        );
    }
    let title = escape_html(path);
    // Above a root there is nothing.
    let up = if path.contains('/') {
        "<p><a href=\"..\">up</a>\n"
    } else {
        ""
    };
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><h1>/ipfs/{title}</h1>\n{up}<table>\n<tr><th>Name<th>Size<th>CID\n{rows}</table></html>\n"
    )
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_has_nothing_above_it() {
        assert!(!page(&[], "bafyroot").contains("href=\"..\""));
        assert!(page(&[], "bafyroot/inner").contains("href=\"..\""));
    }

    #[test]
    fn names_do_not_break_out_of_a_listing() {
        assert_eq!(escape_html("<b a=\"&\">"), "&lt;b a=&quot;&amp;&quot;&gt;");
        assert_eq!(escape_url("javascript:a b/ü"), "javascript%3Aa%20b%2F%C3%BC");
    }
}
