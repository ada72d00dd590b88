//! Command lines of monitors: arguments from `/proc/PID/cmdline`, and QEMU's `key=value,...`
//! and JSON option strings.
//!
//! Whatever stands in them was written by the owner of the process; everything is bounded.

use serde_json::Value;

/// The most that is read of a command line; libvirt's largest are some tens of kilobytes.
pub const MAX_CMDLINE: usize = 256 << 10;
/// The longest option string that is taken apart.
const MAX_OPTION: usize = 64 << 10;
/// The most keys that are taken from one option string.
const MAX_KEYS: usize = 1024;

/// Splits a command line at its NUL bytes; bytes that are not UTF-8 are replaced.
pub fn split(cmdline: &[u8]) -> Vec<String> {
    let cmdline = &cmdline[..cmdline.len().min(MAX_CMDLINE)];
    let cmdline = cmdline.strip_suffix(b"\0").unwrap_or(cmdline);
    if cmdline.is_empty() {
        return Vec::new();
    }
    cmdline.split(|b| *b == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
}

/// The values of option `name` (`-name VALUE`, `--name VALUE`, `--name=VALUE`), in order.
pub fn values<'a>(args: &'a [String], name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    args.iter().enumerate().skip(1).filter_map(move |(index, arg)| {
        let bare = dashless(arg)?;
        if bare == name {
            return args.get(index + 1).map(String::as_str);
        }
        bare.strip_prefix(name)?.strip_prefix('=')
    })
}

/// Whether the option stands on the command line.
pub fn has(args: &[String], name: &str) -> bool {
    args.iter().skip(1).any(|arg| dashless(arg) == Some(name))
}

fn dashless(arg: &str) -> Option<&str> {
    let rest = arg.strip_prefix('-')?;
    Some(rest.strip_prefix('-').unwrap_or(rest))
}

/// The keys and values of an option string in order, from either form QEMU takes:
/// `first,key=value,...` (a comma inside a value is doubled) or a JSON object. Lists and nested
/// objects of JSON are flattened (`"host-nodes":[0,1]` gives the key twice, `"addr":{"path":..}`
/// gives `addr.path`); a value without a key has the key `implied`.
pub fn keys(option: &str, implied: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    if option.len() > MAX_OPTION {
        return out;
    }
    if option.starts_with('{') {
        if let Ok(value) = serde_json::from_str::<Value>(option) {
            flatten("", &value, &mut out);
        }
        return out;
    }
    for (index, part) in parts(option).into_iter().enumerate().take(MAX_KEYS) {
        match part.split_once('=') {
            Some((key, value)) => out.push((key.to_owned(), value.to_owned())),
            None if index == 0 => out.push((implied.to_owned(), part)),
            None => out.push((part, String::new())),
        }
    }
    out
}

/// The last value of `key`, which is the one that counts in QEMU.
pub fn last<'a>(keys: &'a [(String, String)], key: &str) -> Option<&'a str> {
    keys.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// Splits at single commas; a doubled comma is one comma of the value.
fn parts(option: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = option.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

fn flatten(prefix: &str, value: &Value, out: &mut Vec<(String, String)>) {
    if out.len() >= MAX_KEYS {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, out);
            }
        }
        Value::Array(list) => {
            for value in list {
                flatten(prefix, value, out);
            }
        }
        Value::String(text) => out.push((prefix.to_owned(), text.clone())),
        Value::Bool(yes) => {
            out.push((prefix.to_owned(), if *yes { "on" } else { "off" }.to_owned()));
        }
        Value::Number(number) => out.push((prefix.to_owned(), number.to_string())),
        Value::Null => {}
    }
}

/// A size with an optional binary suffix (`4G`, `512M`, `4294967296`), in bytes; a bare number
/// counts units of `unit` bytes.
pub fn size(text: &str, unit: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim_end_matches(['i', 'B', 'b']) {
        "" if digits == text.len() => unit,
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_at_nul() {
        assert_eq!(split(b"a\0-b\0\0c d\0"), ["a", "-b", "", "c d"]);
        assert_eq!(split(b""), Vec::<String>::new());
        assert_eq!(split(b"\xff"), ["\u{fffd}"]);
    }

    #[test]
    fn options_are_found_with_one_or_two_dashes() {
        let args = split(b"qemu\0-smp\0 2\0--smp\x008\0--id=x\0-end");
        assert_eq!(values(&args, "smp").collect::<Vec<_>>(), [" 2", "8"]);
        assert_eq!(values(&args, "id").collect::<Vec<_>>(), ["x"]);
        assert_eq!(values(&args, "end").count(), 0);
        assert!(has(&args, "end") && !has(&args, "qemu"));
    }

    #[test]
    fn a_doubled_comma_belongs_to_the_value() {
        let read = keys("guest=a,,b,debug-threads=on,flag", "guest");
        assert_eq!(last(&read, "guest"), Some("a,b"));
        assert_eq!(last(&read, "debug-threads"), Some("on"));
        assert_eq!(last(&read, "flag"), Some(""));
        assert_eq!(last(&keys("vm1,process=p", "guest"), "guest"), Some("vm1"));
    }

    #[test]
    fn json_options_are_flattened() {
        let read = keys(
            r#"{"qom-type":"memory-backend-ram","size":17179869184,"host-nodes":[0,1],"x":{"y":true}}"#,
            "qom-type",
        );
        assert_eq!(last(&read, "size"), Some("17179869184"));
        assert_eq!(read.iter().filter(|(k, _)| k == "host-nodes").count(), 2);
        assert_eq!(last(&read, "x.y"), Some("on"));
        assert!(keys("{broken", "x").is_empty());
    }

    #[test]
    fn deep_json_is_refused_not_followed() {
        let deep = "{\"a\":".repeat(10_000);
        assert!(keys(&deep, "x").is_empty());
    }

    #[test]
    fn sizes_carry_binary_suffixes() {
        assert_eq!(size("4G", 1), Some(4 << 30));
        assert_eq!(size("512", 1 << 20), Some(512 << 20));
        assert_eq!(size("1024MiB", 1), Some(1 << 30));
        for bad in ["", "G", "1x", "99999999999999999999", "18446744073709551615T"] {
            assert_eq!(size(bad, 1), None, "{bad}");
        }
    }
}
