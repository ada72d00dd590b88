//! Takes passwords out of the command line of a monitor.
//!
//! Three forms are known: `key=value` between commas (a doubled comma belongs to the value), `"key":"value"`
//! of JSON, and `--key value`. So is `user:password@` in an address. Whole values are replaced of options
//! that hold free text for the guest, such as its kernel's command line. What an option hides in other ways stays.

use crate::discover::args;

/// What stands in place of a secret.
const REMOVED: &str = "removed";
/// A key with one of these in it names a secret.
const PARTS: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "credential"];
/// So does a key that is one of these.
const WHOLE: [&str; 6] = ["data", "pass", "pwd", "psk", "key", "apikey"];
/// Options with free text for the guest.
const FREE_TEXT: [&str; 4] = ["append", "cmdline", "params", "fw_cfg"];

/// The arguments, each ended by a NUL, with `removed` in place of secrets.
pub fn without_secrets(cmdline: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(cmdline.len());
    let mut before = String::new();
    for argument in args::split(cmdline) {
        let option = before.trim_start_matches('-');
        let is_value = before.starts_with('-') && !before.contains('=');
        let is_secret = is_secret(option) && !argument.starts_with('-');
        let kept = match is_value && (is_secret || FREE_TEXT.contains(&option)) {
            true => REMOVED.to_owned(),
            false => reduced(&argument, is_value && option == "smbios"),
        };
        out.extend_from_slice(kept.as_bytes());
        out.push(0);
        before = kept;
    }
    out
}

/// Whether the value of a key is a secret; of `file.password` it is the last part that tells.
fn is_secret(key: &str) -> bool {
    let key = key.trim_start_matches('-').to_ascii_lowercase();
    let last = key.rsplit('.').next().unwrap_or(&key);
    PARTS.iter().any(|part| last.contains(part)) || WHOLE.contains(&last)
}

/// One argument without secrets; SMBIOS tables hold some under the key `value`.
fn reduced(argument: &str, is_smbios: bool) -> String {
    let hides = |key: &str| is_secret(key) || (is_smbios && key == "value");
    let mut out = String::with_capacity(argument.len());
    for (index, part) in parts(argument).into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match part.split_once('=') {
            Some((key, _)) if hides(key) || FREE_TEXT.contains(&key.trim_start_matches('-')) => {
                out.push_str(key);
                out.push('=');
                out.push_str(REMOVED);
            }
            _ => out.push_str(part),
        }
    }
    without_users(&without_json(&out))
}

/// The parts of an option between single commas.
fn parts(option: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(comma) = option[at..].find(',').map(|offset| at + offset) {
        if option[comma + 1..].starts_with(',') {
            at = comma + 2;
            continue;
        }
        parts.push(&option[begin..comma]);
        (begin, at) = (comma + 1, comma + 1);
    }
    parts.push(&option[begin..]);
    parts
}

/// Replaces the texts of secret keys in JSON, also where that is a part of an option. As a quote may belong to
/// something else, each one may begin a key.
fn without_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut kept, mut at) = (0, 0);
    while let Some((begin, end)) = quoted(text, at) {
        at = end;
        let after = text.get(end + 1..).unwrap_or_default().trim_start();
        let value = after.strip_prefix(':').map(str::trim_start);
        let value = value.filter(|value| value.starts_with('"') && is_secret(&text[begin..end]));
        let place = value.map(|value| text.len() - value.len());
        if let Some((begin, end)) = place.and_then(|place| quoted(text, place)) {
            out.push_str(&text[kept..begin]);
            out.push_str(REMOVED);
            (kept, at) = (end, end);
        }
    }
    out.push_str(&text[kept..]);
    out
}

/// Where the first text in quotes begins and ends that opens at `from` or later; one that does not end reaches to
/// the end.
fn quoted(text: &str, from: usize) -> Option<(usize, usize)> {
    let begin = from + text[from..].find('"')? + 1;
    let mut is_escaped = false;
    let end = text[begin..].find(|c| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    Some((begin, end.map_or(text.len(), |end| begin + end)))
}

/// Replaces `user:password` before the `@` of an address.
fn without_users(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let end = after.find(|c: char| "/,\"'?# ".contains(c)).unwrap_or(after.len());
        let (host, path) = after.split_at(end);
        match host.rsplit_once('@') {
            Some((_, host)) => out.push_str(&format!("{REMOVED}@{host}")),
            None => out.push_str(host),
        }
        rest = path;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line of words, as it is kept.
    fn kept(words: &[&str]) -> String {
        let line: String = words.iter().map(|word| format!("{word}\0")).collect();
        let kept = without_secrets(line.as_bytes());
        String::from_utf8(kept).unwrap().trim_end_matches('\0').replace('\0', " ")
    }

    #[test]
    fn secrets_are_removed_in_every_form() {
        for (words, want) in [
            (
                &["-object", "secret,id=s,data=a,,b,format=raw"][..],
                "-object secret,id=s,data=removed,format=raw",
            ),
            (
                &["-object", r#"{"qom-type":"secret","id":"s","data":"a\"b","x":1}"#],
                r#"-object {"qom-type":"secret","id":"s","data":"removed","x":1}"#,
            ),
            (&["-object", r#"{"data" : "never ends"#], r#"-object {"data" : "removed"#),
            (&["-spice", "port=5,password=geheim"], "-spice port=5,password=removed"),
            (
                &["-drive", r#"file=json:{"file":{"password":"p"}},if=none"#],
                r#"-drive file=json:{"file":{"password":"removed"}},if=none"#,
            ),
            (&["-drive", "file=https://u:p@h/x@y,id=d"], "-drive file=https://removed@h/x@y,id=d"),
            (&[r#"-x=a"b,{"data":"p","id":"d"}"#], r#"-x=a"b,{"data":"removed","id":"d"}"#),
            (&["-iscsi", "user=me,file.password=p"], "-iscsi user=me,file.password=removed"),
            (&["-append", "root=/dev/vda pw=x"], "-append removed"),
            (&["-append", "-- pw=x"], "-append removed"),
            (&["--cmdline", "a"], "--cmdline removed"),
            (&["--cmdline=a b"], "--cmdline=removed"),
            (&["--token", "t", "--pass", "-x"], "--token removed --pass -x"),
            (
                &["-smbios", "type=11,value=io.systemd.credential:x=y"],
                "-smbios type=11,value=removed",
            ),
            (&["-fw_cfg", "name=opt/x,string=y"], "-fw_cfg removed"),
        ] {
            assert_eq!(kept(words), want);
        }
    }

    #[test]
    fn all_else_stays() {
        for words in [
            &["-name", "guest=a,,b,debug-threads=on", "-smbios", "type=1,uuid=1-2"][..],
            &["-object", r#"{"qom-type":"memory-backend-ram","id":"ram","host-nodes":[0,1]}"#],
            &["-numa", "hmat-lb,data-type=access-latency", ",", "a,", ",,"],
            &["-object", "secret,id=masterKey0,format=raw,file=/var/lib/libvirt/k.aes"],
            &["-chardev", "socket,id=c,path=/run/@x", "-netdev", "l2tpv3,src=://"],
            &["--id", "web", "-append"],
            &["-name", r#"a"b\"#, r#""\"#, r#"{"id":"a"}"#],
        ] {
            assert_eq!(kept(words), words.join(" "));
        }
        assert!(without_secrets(b"").is_empty());
        assert_eq!(without_secrets(b"a"), b"a\0");
    }
}
