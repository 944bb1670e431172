//! Case by case: answers as MATH-500, GSM8K and DAPO-Math have them, and the forms math_verify's tests name.

use super::{Math, equal};
use crate::reward::{RewardFunction, Sample, Unscored};
use proptest::prelude::*;
use serde_json::Value;

/// Pairs that say the same.
const EQUAL: &[(&str, &str)] = &[
    // Fractions, decimals, exactly.
    ("\\frac{1}{2}", "0.5"),
    ("\\dfrac{1}{2}", "\\frac{1}{2}"),
    ("\\tfrac12", "\\frac{1}{2}"),
    ("\\frac1{72}", "\\frac{1}{72}"),
    ("\\frac 59", "5/9"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("\\frac{6}{8}", "3/4"),
    ("0.50", ".5"),
    ("18.0", "18"),
    ("½", "0.5"),
    // Mixed numbers.
    ("2\\frac{3}{4}", "\\frac{11}{4}"),
    ("2 3/4", "2.75"),
    ("13\\frac{1}{2}", "13.5"),
    // Thousands.
    ("1,000", "1000"),
    ("1,234,567", "1234567"),
    ("10,\\!080", "10080"),
    ("58{,}500", "58500"),
    ("\\$32,348", "32,348"),
    // Units, degrees, currency, percent.
    ("5\\text{ cm}", "5"),
    ("24\\text{ cm}^2", "24"),
    ("60\\ \\mathrm{km/h}", "60"),
    ("12 inches", "12"),
    ("5.4 \\text{ cents}", "5.4"),
    ("90^\\circ", "90"),
    ("90^{\\circ}", "90"),
    ("90°", "90 degrees"),
    ("\\$18.90", "18.90"),
    ("50\\%", "50"),
    ("50\\%", "0.5"),
    ("28%", "28\\%"),
    // Roots and constants.
    ("\\sqrt{12}", "2\\sqrt{3}"),
    ("\\sqrt3", "\\sqrt{3}"),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("\\sqrt{2}\\sqrt{3}", "\\sqrt{6}"),
    ("\\sqrt[3]{8}", "2"),
    ("\\sqrt[3]{-27}", "-3"),
    ("3\\sqrt{13}", "\\sqrt{117}"),
    ("\\frac{\\sqrt{3}}{3}", "1/\\sqrt{3}"),
    ("\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}"),
    ("2^{1/2}", "\\sqrt{2}"),
    ("\\sqrt{-4}", "2i"),
    ("(1+i)^2", "2i"),
    ("6 - 5i", "6-5i"),
    ("\\frac{\\pi}{4}", "\\pi/4"),
    ("2\\pi", "2 π"),
    ("8 \\times 10^3", "8000"),
    ("2^{10}", "1024"),
    ("5!", "120"),
    ("\\binom{5}{2}", "10"),
    ("\\sin^2 x", "(\\sin x)^2"),
    ("\\log_2 x", "\\log_{2}(x)"),
    ("e^{2x}", "(e^x)^2"),
    ("e^{2x}", "\\exp(2x)"),
    ("e^x \\cdot e^{-x}", "1"),
    ("2^n \\cdot 2^n", "2^{2n}"),
    ("\\log_2 8", "3"),
    ("\\log_{10} 0.01", "-2"),
    ("\\text{12}", "12"),
    // Algebra.
    ("(x+1)^2", "x^2+2x+1"),
    ("2x+3", "3+2x"),
    ("x(x-1)", "x^2-x"),
    ("\\frac{x^2-1}{x-1}", "x+1"),
    ("\\frac{x+2}{7}", "\\frac{x}{7}+\\frac{2}{7}"),
    ("6r^2-4r-24", "-24-4r+6r^{2}"),
    ("ab", "ba"),
    ("2xyz", "2zyx"),
    ("\\frac{3}{2}x", "3x/2"),
    ("-x^2", "-(x^2)"),
    // Named answers.
    ("x=5", "5"),
    ("x = \\frac{1}{2}", "0.5"),
    ("f(x) = 2x", "2x"),
    ("y=2x+3", "2x - y + 3 = 0"),
    ("2x+4y=6", "x+2y=3"),
    ("x > 5", "5 < x"),
    // Points, intervals, sets, lists.
    ("(1, 2)", "\\left( 1, 2 \\right)"),
    ("\\left(3,\\frac{\\pi}{2}\\right)", "(3, \\pi/2)"),
    ("[0, 1)", "[0,1)"),
    ("x \\ge 2", "[2,\\infty)"),
    ("x<1", "(-\\infty, 1)"),
    ("1 < x \\leq 3", "(1,3]"),
    ("x \\in [-2,7]", "[-2,7]"),
    ("(-\\infty,1)\\cup(2,\\infty)", "(2,\\infty) \\cup (-\\infty,1)"),
    ("\\{1, 2, 3\\}", "\\{3,2,1\\}"),
    ("\\{1, 2, 2, 3\\}", "\\{3,2,1\\}"),
    ("(x,y) = (1,2)", "(1,2)"),
    ("1 2\n3 4", "1 2 \n 3  4"),
    ("x^2 3", "3x^2"),
    ("1, 2, 3", "3, 1, 2"),
    ("1,-2", "-2 \\text{ and } 1"),
    ("5 or 6", "6, 5"),
    ("\\pm 2", "2, -2"),
    ("1 \\pm \\sqrt{19}", "1+\\sqrt{19}, 1-\\sqrt{19}"),
    ("\\{5\\}", "5"),
    ("\\emptyset", "\\{\\}"),
    (
        "\\begin{pmatrix} 1 & 2 \\\\ 3 & 0.5 \\end{pmatrix}",
        "\\begin{pmatrix}1&2\\\\3&\\frac12\\end{pmatrix}",
    ),
    // Words and choices.
    ("\\text{Evelyn}", "Evelyn"),
    ("\\text{(C)}", "C"),
    ("(C)", "\\text{C}"),
    ("\\textbf{(B)}", "B"),
    ("even", "\\text{Even}"),
    ("4210_{5}", "4210_5"),
    ("|{-3}|", "3"),
];

/// Pairs that do not.
const DIFFERENT: &[(&str, &str)] = &[
    ("0.333", "\\frac{1}{3}"),
    ("0.33333333333333333", "1/3"),
    ("3.14159265358979", "\\pi"),
    ("1.41421356237310", "\\sqrt{2}"),
    ("1", "2"),
    ("-5", "5"),
    ("\\frac{1}{2}", "\\frac{2}{1}"),
    ("x+2", "y+2"),
    ("x", "X"),
    ("x^2", "2x"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("[0,1)", "[0,1]"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("1,2", "1,3"),
    ("1,1", "1,2"),
    ("x>5", "x<5"),
    ("x>5", "x \\ge 5"),
    ("x+1=2", "3"),
    ("x=5", "y=5"),
    ("x>5", "y>5"),
    ("e^{2x}", "e^x"),
    ("2^{2n}", "2^n"),
    ("\\log_2 8", "4"),
    ("1, 1", "1"),
    ("(x,y) = (1,2)", "(2,1)"),
    ("1 2 3", "3 2 1"),
    ("1 2\n3 4", "1 3\n2 4"),
    ("1 23", "12 3"),
    ("\\sqrt{2}", "2"),
    ("\\sqrt{2}", "-\\sqrt{2}"),
    ("50\\%", "5"),
    ("4210_5", "4210_6"),
    ("Evelyn", "Carla"),
    ("dog", "god"),
    ("\\text{(B)}", "C"),
    ("2\\frac{3}{4}", "\\frac{6}{4}"),
    (
        "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}",
    ),
    ("", "5"),
    ("\\{1,2\\},\\{3\\}", "\\{1,2,3\\}"),
    ("1/0", "2/0"),
    ("1000", "1"),
    ("10^{100}", "10^{99}"),
];

#[test]
fn equal_answers_are_equal_both_ways() {
    let wrong: Vec<_> = EQUAL
        .iter()
        .filter(|(a, b)| !equal(a, b) || !equal(b, a))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn different_answers_are_different_both_ways() {
    let wrong: Vec<_> = DIFFERENT
        .iter()
        .filter(|(a, b)| equal(a, b) || equal(b, a))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn score(completion: &str, answer: &str) -> Result<f64, Unscored> {
    Math.score(&Sample {
        prompt: "",
        completion,
        completion_tokens: 1,
        answer,
        row: &Value::Null,
    })
}

#[test]
fn the_answer_is_found_where_people_put_it() {
    let right = [
        ("So \\boxed{1} no, \\boxed{\\frac{3}{4}}.", "0.75"),
        ("Thus the answer is $\\frac{3}{4}$, as claimed.", "0.75"),
        ("The final answer is 18. I hope it is correct.", "18"),
        ("**Answer:** 42", "42"),
        ("<answer> 7 </answer>", "7"),
        ("We get \\(x=2\\) and then \\[y = 3\\]", "3"),
        ("So there are 18 eggs left", "#### 18"),
        ("It is $\\boxed{1}$ and $\\boxed{2}$.", "2, 1"),
        ("\\boxed{1}, \\boxed{2}, or \\boxed{3}", "\\{1,2,3\\}"),
        ("First \\boxed{1}. Then \\boxed{2}", "2"),
        ("9 * 2 = 18\n#### 18", "#### 18"),
        ("1 2\n3 4", "1 2\n3 4"),
        ("So <answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
        ("18", "She makes 9 * 2 = 18 dollars.\n#### 18"),
        (
            "\\boxed{\\text{(C)}}",
            "Since so and so, the answer is $\\boxed{C}$.",
        ),
        (
            "\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}",
            "\\left( 3, \\frac{\\pi}{2} \\right)",
        ),
    ];
    for (completion, answer) in right {
        assert_eq!(score(completion, answer), Ok(1.0), "{completion}");
    }
    let wrong = [
        ("\\boxed{0.75} or rather \\boxed{2}", "0.75"),
        ("18 and then 17", "18"),
        ("1 2\n4 3", "1 2\n3 4"),
        ("1 3\n3 4", "1 2\n3 4"),
        ("18\n#### 17", "18"),
        ("\\boxed{17} or \\boxed{18}", "18"),
        ("", "18"),
        ("the answer is", "18"),
        ("\\boxed{", "18"),
    ];
    for (completion, answer) in wrong {
        assert_eq!(score(completion, answer), Ok(0.0), "{completion}");
    }
    assert_eq!(score("1", " "), Err(Unscored::ReferenceEmpty));
}

#[test]
fn nothing_written_runs_away() {
    let deep = format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000));
    let wide = "(x+y+z+w)^{12}".repeat(8);
    let tower = "9^{9^{9^{9}}}";
    for text in [
        deep.as_str(),
        &wide,
        tower,
        "\\sqrt[0]{2}",
        "0^{-1}",
        "\\frac",
        "99999999999999999999!",
    ] {
        let start = std::time::Instant::now();
        let _ = equal(text, "1");
        assert!(start.elapsed().as_secs() < 5, "{text:.40}");
    }
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "[-+*/^(){}\\[\\]|,.0-9a-z\\\\ ]{0,60}") {
        let _ = equal(&text, "\\frac{1}{2}");
        prop_assert!(text.trim().is_empty() || equal(&text, &text) || super::clean::clean(&text).is_empty());
    }

    #[test]
    fn fractions_are_their_decimals(n in -10_000_i32..10_000) {
        let decimal = format!("{}{}.{:02}", if n < 0 { "-" } else { "" }, n.abs() / 100, n.abs() % 100);
        let fraction = format!("\\frac{{{n}}}{{100}}");
        prop_assert!(equal(&decimal, &fraction));
    }
}
