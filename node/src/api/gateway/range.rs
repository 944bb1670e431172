//! The `Range` header (RFC 9110, section 14).

/// What of a file is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything: there is no range, or one that may be ignored.
    Whole,
    /// From the first byte up to and including the second.
    Bytes(u64, u64),
    /// Nothing that the file has.
    Outside,
}

/// Reads a range over a file of `size` bytes. Several ranges, other units and nonsense count as no range.
pub(super) fn parse(header: Option<&str>, size: u64) -> Part {
    let Some((first, last)) = header
        .and_then(|text| text.trim().strip_prefix("bytes="))
        .filter(|range| !range.contains(','))
        .and_then(|range| range.trim().split_once('-'))
    else {
        return Part::Whole;
    };
    match (first.trim(), last.trim()) {
        ("", count) => match count.parse() {
            Ok(0) => Part::Outside,
            Ok(_) if size == 0 => Part::Outside,
            Ok(count) => Part::Bytes(size.saturating_sub(count), size - 1),
            Err(_) => Part::Whole,
        },
        (first, last) => {
            let last = if last.is_empty() {
                Ok(u64::MAX)
            } else {
                last.parse()
            };
            match (first.parse::<u64>(), last) {
                (Ok(first), Ok(last)) if last < first => Part::Whole,
                (Ok(first), Ok(_)) if first >= size => Part::Outside,
                (Ok(first), Ok(last)) => Part::Bytes(first, last.min(size - 1)),
                _ => Part::Whole,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let cases = [
            (None, Part::Whole),
            (Some("bytes=0-0"), Part::Bytes(0, 0)),
            (Some("bytes=2-5"), Part::Bytes(2, 5)),
            (Some("bytes=2-"), Part::Bytes(2, 9)),
            (Some("bytes=2-99999999999"), Part::Bytes(2, 9)),
            (Some("bytes=-3"), Part::Bytes(7, 9)),
            (Some("bytes=-30"), Part::Bytes(0, 9)),
            (Some("bytes=-0"), Part::Outside),
            (Some("bytes=10-"), Part::Outside),
            (Some("bytes=5-2"), Part::Whole),
            (Some("bytes=0-1,4-5"), Part::Whole),
            (Some("lines=0-1"), Part::Whole),
            (Some("bytes=a-b"), Part::Whole),
            (Some("bytes=99999999999999999999-"), Part::Whole),
        ];
        for (header, part) in cases {
            assert_eq!(parse(header, 10), part, "{header:?}");
        }
        assert_eq!(parse(Some("bytes=0-"), 0), Part::Outside);
        assert_eq!(parse(Some("bytes=-1"), 0), Part::Outside);
    }
}
