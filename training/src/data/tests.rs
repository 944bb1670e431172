//! Rows that are read, rows that are refused, splits.

use super::jsonl::parse_line;
use super::*;
use std::io::Write;

fn file(lines: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(lines.as_bytes()).unwrap();
    file
}

fn read(lines: &str) -> Result<Vec<Question>, DataError> {
    read_questions(file(lines).path(), &ColumnsSpec::default())
}

#[test]
fn rows_skip_blank_lines_and_numbers_are_answers() {
    let questions =
        read("{\"question\":\"a\",\"answer\":\"1\"}\r\n\n{\"question\":\"b\",\"answer\":2}").unwrap();
    assert_eq!(questions.len(), 2);
    assert_eq!((questions[1].row, questions[1].answer.as_str()), (1, "2"));
    assert_eq!(questions[0].prompt, Prompt::Text("a".into()));
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_row() {
    let questions = read("\u{feff}{\"question\":\"a\",\"answer\":\"1\"}\n").unwrap();
    assert_eq!(questions[0].prompt, Prompt::Text("a".into()));
}

#[test]
fn a_broken_line_is_named() {
    let message = read("{\"question\":\"a\",\"answer\":\"1\"}\n{\"question\":")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("row 2") && message.contains("mend or delete"),
        "{message}"
    );
}

#[test]
fn a_missing_column_is_named_with_those_there_are() {
    let message = read("{\"prompt\":\"a\",\"answer\":\"1\"}")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("\"question\"") && message.contains("\"prompt\""),
        "{message}"
    );
}

#[test]
fn wrong_types_are_refused() {
    for line in [
        "[1]",
        "{\"question\":1,\"answer\":\"1\"}",
        "{\"question\":\"a\",\"answer\":[\"1\"]}",
    ] {
        assert!(
            matches!(read(line), Err(DataError::Line { line: 1, .. })),
            "{line}"
        );
    }
    let messages = "{\"question\":[{\"role\":\"user\"}],\"answer\":\"1\"}";
    assert!(read(messages).unwrap_err().to_string().contains("content"));
}

#[test]
fn a_question_may_have_no_answer() {
    let questions = read("{\"question\":\"a\",\"answer\":null}").unwrap();
    assert_eq!(questions[0].answer, "");
}

#[test]
fn messages_are_read() {
    let columns = ColumnsSpec {
        prompt: "messages".into(),
        answer: "answer".into(),
    };
    let file = file("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"answer\":\"1\"}");
    let questions = read_questions(file.path(), &columns).unwrap();
    assert_eq!(questions[0].prompt.text(), "hi");
}

#[test]
fn an_empty_or_absent_file_is_an_error() {
    assert!(matches!(read("\n\n"), Err(DataError::Empty { .. })));
    let gone = read_questions(Path::new("/nonexistent/q.jsonl"), &ColumnsSpec::default());
    assert!(matches!(gone, Err(DataError::Io { .. })));
}

#[test]
fn not_utf8_and_too_long_are_refused() {
    assert!(matches!(
        parse_line(&[b'{', 0xff], 0, &ColumnsSpec::default()),
        Err(LineError::Utf8)
    ));
    let long = vec![b' '; MAX_LINE_BYTES as usize];
    assert!(matches!(
        parse_line(&long, 0, &ColumnsSpec::default()),
        Err(LineError::TooLong)
    ));
}

#[test]
fn overlap_is_found_whatever_the_spacing() {
    let train = read("{\"question\":\"1 +  2\",\"answer\":\"3\"}").unwrap();
    let heldout =
        read("{\"question\":\"1 + 3\",\"answer\":\"4\"}\n{\"question\":\"1 + 2\",\"answer\":\"3\"}").unwrap();
    let error = check_disjoint(&train, &heldout).unwrap_err();
    assert!(
        matches!(
            error,
            DataError::Overlap {
                count: 1,
                heldout_row: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(check_disjoint(&train, &heldout[..1]).is_ok());
}

#[test]
fn the_split_is_near_its_share_and_depends_on_text_alone() {
    let held = (0..4000)
        .filter(|i| split_of(&Prompt::Text(format!("q {i}")), 250) == Split::HeldOut)
        .count();
    assert!((900..1100).contains(&held), "{held}");
    let spaced = Prompt::Text("q   7".into());
    assert_eq!(split_of(&spaced, 500), split_of(&Prompt::Text("q 7".into()), 500));
}
