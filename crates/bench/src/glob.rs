//! Whether a name fits a pattern with `*` (anything) and `?` (one character).

/// Whether all of `name` fits `pattern`.
#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and up to where it took.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_take_anything_and_question_marks_one() {
        for (pattern, name) in [
            ("*", ""),
            ("spin*", "spin-1ms"),
            ("*-50", "spin-1ms-50"),
            ("a?c", "abc"),
            ("a*b*c", "axbybzc"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("spin", "spin-1ms"), ("*-50", "spin-500"), ("a?c", "ac"), ("", "a")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
