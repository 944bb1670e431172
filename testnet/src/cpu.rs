//! Processor time of this process and its children, from `/proc`.

use std::fs;

/// Linux counts in ticks of a hundredth of a second towards programs, whatever the kernel's own timer.
const TICKS_PER_SECOND: f64 = 100.0;

/// Ticks of one process: its own, and those of children that have ended and were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    own: u64,
    ended_children: u64,
}

/// Processor seconds used by this process, the children in `running`, and all that have ended.
#[must_use]
pub(crate) fn seconds(running: impl Iterator<Item = u32>) -> f64 {
    let me = ticks("self");
    let children: u64 = running
        .map(|pid| ticks(&pid.to_string()))
        .map(|t| t.own + t.ended_children)
        .sum();
    (me.own + me.ended_children + children) as f64 / TICKS_PER_SECOND
}

fn ticks(process: &str) -> Ticks {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    parse(&text).unwrap_or_default()
}

/// Fields 14 to 17 of proc(5)'s `stat`; the second field, the name, may hold spaces and parentheses.
fn parse(stat: &str) -> Option<Ticks> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<u64> = after_name
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|f| f.parse().ok())
        .collect();
    let [user, system, ended_user, ended_system] = fields[..] else {
        return None;
    };
    Some(Ticks {
        own: user + system,
        ended_children: ended_user + ended_system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_does_not_shift_the_fields() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194560 9 0 0 0 70 30 5 2 20 0 9 0 100 1 1";
        assert_eq!(
            parse(stat),
            Some(Ticks {
                own: 100,
                ended_children: 7
            })
        );
        assert_eq!(parse("nonsense"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn time_passes_while_computing() {
        let before = seconds(std::iter::empty());
        let mut x = 1u64;
        let until = std::time::Instant::now() + std::time::Duration::from_millis(100);
        while std::time::Instant::now() < until {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(1));
        }
        assert!(seconds(std::iter::empty()) > before);
    }
}
