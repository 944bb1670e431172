//! What of a CAR is wanted: how much of the graph, and how its blocks are laid out.

use super::Options;
use crate::api::ApiError;
use crate::content::car::Duplicates;
use crate::content::unixfs::Scope;
use axum::http::{HeaderMap, header};

/// A CAR as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) part: Part,
    pub(super) duplicates: Duplicates,
}

/// `dag-scope` and `entity-bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Block,
    Entity,
    Bytes(Offsets),
    All,
}

/// `from:to`, both included. What is below zero counts from the end; without a `to` it is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offsets {
    from: i64,
    to: Option<i64>,
}

impl Wanted {
    /// What a query and an `Accept` header ask for; the query counts first.
    pub(super) fn asked(options: &Options, headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(Self {
            part: Part::asked(options)?,
            duplicates: duplicates(options, headers)?,
        })
    }

    /// How the tag of such a CAR begins.
    pub(super) fn tag(&self) -> String {
        let part = match self.part {
            Part::All => String::new(),
            Part::Block => "block.".to_owned(),
            Part::Entity => "entity.".to_owned(),
            Part::Bytes(Offsets { from, to }) => {
                let to = to.map_or("*".to_owned(), |to| to.to_string());
                format!("bytes={from}:{to}.")
            }
        };
        let duplicates = match self.duplicates {
            Duplicates::Once => "",
            Duplicates::EachTime => "dups.",
        };
        part + duplicates
    }
}

impl Part {
    fn asked(options: &Options) -> Result<Self, ApiError> {
        let scope = match options.dag_scope.as_deref() {
            None | Some("all") => Self::All,
            Some("entity") => Self::Entity,
            Some("block") => Self::Block,
            Some(other) => {
                let text = format!("dag-scope={other} is none: ask for block, entity or all");
                return Err(ApiError::BadRequest(text));
            }
        };
        // A range is one of an entity, whatever else is said.
        match &options.entity_bytes {
            Some(text) => Offsets::parse(text).map(Self::Bytes),
            None => Ok(scope),
        }
    }
}

impl Offsets {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let read = || {
            let (from, to) = text.split_once(':')?;
            let to = match to {
                "*" => None,
                number => Some(number.parse().ok()?),
            };
            Some(Self {
                from: from.parse().ok()?,
                to,
            })
        };
        read().ok_or_else(|| {
            ApiError::BadRequest(format!(
                "entity-bytes={text} is no range: it is from:to, such as 0:1023, 1024:* or -1024:*"
            ))
        })
    }

    /// The part of a file of `size` bytes. Nothing between its ends is its first block alone.
    pub(super) fn of(self, size: u64) -> Result<Scope, ApiError> {
        let length = i128::from(size);
        let place = |offset: i64| match i128::from(offset) {
            back if back < 0 => length + back,
            offset => offset,
        };
        let (from, to) = (place(self.from), self.to.map_or(length - 1, place));
        let is_range = self.to.is_none() || from <= to;
        if size > 0 && is_range && (from >= length || to < 0) {
            let text = format!("the range lies outside of the file, which has {size} bytes");
            return Err(ApiError::BadRequest(text));
        }
        let within = |at: i128| u64::try_from(at.clamp(0, length)).unwrap_or(size);
        let (start, end) = (within(from), within(to + 1));
        Ok(if start < end {
            Scope::Bytes(start..end)
        } else {
            Scope::Block
        })
    }
}

/// The first variant that is made, of those in the query or else the header, the most wanted first.
fn duplicates(options: &Options, headers: &HeaderMap) -> Result<Duplicates, ApiError> {
    let accepted: Vec<&str> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let mut variants: Vec<Variant<'_>> = accepted
        .iter()
        .flat_map(|value| value.split(','))
        .filter_map(Variant::parse)
        .collect();
    variants.retain(|variant| variant.quality > 0.0);
    variants.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    if variants.is_empty() {
        variants.push(Variant::default());
    }
    for variant in &mut variants {
        let asked = [
            (&mut variant.version, &options.car_version),
            (&mut variant.order, &options.car_order),
            (&mut variant.dups, &options.car_dups),
        ];
        for (parameter, asked) in asked {
            *parameter = asked.as_deref().unwrap_or(parameter);
        }
    }
    variants.iter().find_map(Variant::duplicates).ok_or_else(|| {
        ApiError::BadRequest(
            "this gateway gives CARs with version=1, order=dfs and dups=y or dups=n".to_owned(),
        )
    })
}

/// One of the CARs that an `Accept` header names; what it leaves out is empty.
#[derive(Debug, Clone, Copy)]
struct Variant<'a> {
    version: &'a str,
    order: &'a str,
    dups: &'a str,
    quality: f32,
}

impl Default for Variant<'_> {
    fn default() -> Self {
        Self {
            version: "",
            order: "",
            dups: "",
            quality: 1.0,
        }
    }
}

impl<'a> Variant<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next()?;
        if !kind.eq_ignore_ascii_case("application/vnd.ipld.car") {
            return None;
        }
        let mut variant = Self::default();
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                "version" => variant.version = value,
                "order" => variant.order = value,
                "dups" => variant.dups = value,
                "q" => variant.quality = value.parse().unwrap_or(1.0),
                _ => {}
            }
        }
        Some(variant)
    }

    /// How it treats duplicates, if it is one that is made. Depth first is an order that may be unknown, too.
    fn duplicates(&self) -> Option<Duplicates> {
        if !["", "1"].contains(&self.version) || !["", "dfs", "unk"].contains(&self.order) {
            return None;
        }
        match self.dups {
            "" | "n" => Some(Duplicates::Once),
            "y" => Some(Duplicates::EachTime),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn options(query: &str) -> Options {
        let uri = format!("/?{query}").parse().unwrap();
        axum::extract::Query::try_from_uri(&uri).unwrap().0
    }

    /// The examples of the specification, over a file of 2,000 bytes.
    #[test]
    fn ranges_are_read_as_the_specification_says() {
        let range = |text: &str| Offsets::parse(text).unwrap().of(2000).ok();
        let cases = [
            ("0:*", Some(Scope::Bytes(0..2000))),
            ("-1024:*", Some(Scope::Bytes(976..2000))),
            ("499:-1000", Some(Scope::Bytes(499..1001))),
            ("0:0", Some(Scope::Bytes(0..1))),
            ("0:1999", Some(Scope::Bytes(0..2000))),
            ("-1:-1", Some(Scope::Bytes(1999..2000))),
            // Partly outside.
            ("1000:9999", Some(Scope::Bytes(1000..2000))),
            ("-9999:9", Some(Scope::Bytes(0..10))),
            ("-9999:*", Some(Scope::Bytes(0..2000))),
            // Of no length.
            ("9:8", Some(Scope::Block)),
            ("500:-1600", Some(Scope::Block)),
            ("-1:5", Some(Scope::Block)),
            // Outside.
            ("2000:*", None),
            ("2000:2000", None),
            ("-9999:-2001", None),
            ("9223372036854775807:9223372036854775807", None),
            ("-9223372036854775808:*", Some(Scope::Bytes(0..2000))),
        ];
        for (text, scope) in cases {
            assert_eq!(range(text), scope, "{text}");
        }
        for text in ["0:*", "5:9", "-3:*"] {
            assert_eq!(
                Offsets::parse(text).unwrap().of(0).unwrap(),
                Scope::Block,
                "{text}"
            );
        }
        for text in [
            "",
            ":",
            "1",
            "*:5",
            "a:b",
            "1:2:3",
            "1.5:2",
            "0:",
            ":5",
            "0-5",
            "99999999999999999999:*",
        ] {
            assert!(Offsets::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_is_one_of_an_entity() {
        let part = |query: &str| Part::asked(&options(query)).ok();
        let bytes = Part::Bytes(Offsets { from: 0, to: None });
        assert_eq!(part(""), Some(Part::All));
        assert_eq!(part("dag-scope=all"), Some(Part::All));
        assert_eq!(part("dag-scope=entity"), Some(Part::Entity));
        assert_eq!(part("dag-scope=block"), Some(Part::Block));
        assert_eq!(part("entity-bytes=0:*"), Some(bytes));
        assert_eq!(part("dag-scope=entity&entity-bytes=0:*"), Some(bytes));
        for query in [
            "dag-scope=",
            "dag-scope=file",
            "dag-scope=ALL",
            "entity-bytes=",
            "dag-scope=x&entity-bytes=0:*",
        ] {
            assert_eq!(part(query), None, "{query}");
        }
    }

    #[test]
    fn the_variant_that_is_wanted_most_and_made_is_given() {
        let car = "application/vnd.ipld.car";
        let cases = [
            ("", String::new(), Some(Duplicates::Once)),
            ("", car.to_owned(), Some(Duplicates::Once)),
            (
                "",
                format!("{car}; version=1; order=dfs; dups=y"),
                Some(Duplicates::EachTime),
            ),
            (
                "",
                format!("{car};version=1;order=unk;dups=n"),
                Some(Duplicates::Once),
            ),
            (
                "",
                format!("{car};dups=\"y\";unknown=5"),
                Some(Duplicates::EachTime),
            ),
            // The specification's list of preferences.
            (
                "",
                format!("{car};order=foo, {car};order=dfs;dups=y;q=0.5"),
                Some(Duplicates::EachTime),
            ),
            (
                "",
                format!("{car};dups=y;q=0.1, text/html, {car};dups=n;q=0.5"),
                Some(Duplicates::Once),
            ),
            ("", format!("{car};dups=y;q=0"), Some(Duplicates::Once)),
            ("", format!("{car};order=foo"), None),
            ("", format!("{car};version=2"), None),
            ("", format!("{car};dups=x"), None),
            // The query comes first.
            ("car-dups=y", format!("{car};dups=n"), Some(Duplicates::EachTime)),
            (
                "car-order=dfs&car-version=1",
                format!("{car};order=foo;version=2"),
                Some(Duplicates::Once),
            ),
            ("car-order=foo", car.to_owned(), None),
            ("car-version=2", String::new(), None),
        ];
        for (query, accept, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(&accept).unwrap());
            let found = duplicates(&options(query), &headers).ok();
            assert_eq!(found, expected, "{query} {accept}");
        }
    }
}
