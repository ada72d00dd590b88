//! The configuration of a VM of Proxmox, `/etc/pve/qemu-server/ID.conf`, and the file with its process,
//! `/run/qemu-server/ID.pid`.
//!
//! ```text
//! tags: production;instep-cosched-relaxed;instep-weight-200
//! [before-upgrade]                    a snapshot: the configuration of another time
//! tags: instep-ignore
//! ```
//! A tag has letters, digits and `-_+.` only, so that `instep-KEY-VALUE` stands for a setting, and `instep-KEY` for one without
//! a value. It knows nothing of which settings there are.

/// What tags for Instep begin with.
pub(super) const PREFIX: &str = "instep-";

/// The process that such a file names.
pub fn pid(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

/// The settings in the tags of a configuration, in their order. Snapshots and changes that wait for a restart do
/// not count.
pub fn settings(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let now = text.lines().take_while(|line| !line.starts_with('['));
    // Proxmox itself takes the last line of a key.
    let tags = now.filter_map(|line| line.strip_prefix("tags:")).last().unwrap_or_default();
    let each = tags.split([';', ',', ' ', '\t']).map(str::trim);
    each.filter_map(|tag| tag.strip_prefix(PREFIX)).map(setting).collect()
}

fn setting(tag: &str) -> (String, String) {
    let (key, value) = tag.split_once('-').unwrap_or((tag, ""));
    (key.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = include_str!("fixtures/proxmox-104.conf");

    fn settings_of(config: &str) -> Vec<(String, String)> {
        settings(config.as_bytes())
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn tags_before_the_first_snapshot_count() {
        let expected = [pair("cosched", "relaxed"), pair("weight", "200"), pair("period", "4.5ms")];
        assert_eq!(settings_of(CONFIG), expected);
        let pending = CONFIG.replacen("tags:", "#tags:", 1);
        assert_eq!(settings_of(&pending), [], "those of snapshots and of [PENDING] do not");
    }

    #[test]
    fn tags_are_distinguished_as_proxmox_does() {
        for tags in ["a;instep-ignore", "instep-ignore,b", "c instep-ignore  d", "instep-ignore"] {
            assert_eq!(
                settings_of(&format!("cores: 2\ntags: {tags}\n")),
                [pair("ignore", "")],
                "{tags}"
            );
        }
        assert_eq!(
            settings_of("tags: instep-weight-1\ntags: instep-weight-2\n"),
            [pair("weight", "2")]
        );
        assert_eq!(settings_of("#tags: instep-ignore\ndescription: tags: instep-ignore\n"), []);
        assert_eq!(settings_of("tags: instep;not-instep-ignore;instep-\n"), [pair("", "")]);
    }

    #[test]
    fn a_process_is_a_number_alone() {
        assert_eq!(
            (pid(b"4711\n"), pid(b"4711"), pid(b"4711 4712\n")),
            (Some(4711), Some(4711), None)
        );
        assert_eq!((pid(b""), pid(b"-1\n"), pid(b"\xff\n")), (None, None, None));
    }
}
