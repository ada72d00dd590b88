//! Where the fields of a tracepoint lie in its raw records: the kernel's `events/*/*/format`
//! files, which recorders copy into the trace. Offsets differ between kernels, names do not.

/// One tracepoint's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) name: String,
    /// The `common_type` of its records.
    pub(crate) id: u16,
    pub(crate) fields: Vec<Field>,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    /// Whether the field is a `__data_loc`: offset and length of a string further behind.
    pub(crate) dynamic: bool,
}

/// More fields than any kernel's tracepoint has; the rest is not looked at.
const MAX_FIELDS: usize = 128;
/// Longer than any record of a ring buffer's page.
const MAX_RECORD: usize = 65_536;

/// Reads a format file; `None` for one without name and number.
pub(crate) fn parse(text: &str) -> Option<Format> {
    let mut format = Format { name: String::new(), id: 0, fields: Vec::new() };
    let mut id = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("name:") {
            format.name = name.trim().to_owned();
        } else if let Some(number) = line.strip_prefix("ID:") {
            id = number.trim().parse().ok();
        } else if line.starts_with("field:") && format.fields.len() < MAX_FIELDS {
            format.fields.extend(field(line));
        } else if line.starts_with("print fmt:") {
            break;
        }
    }
    format.id = id?;
    (!format.name.is_empty()).then_some(format)
}

/// One line: `field:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;`.
pub(crate) fn field(line: &str) -> Option<Field> {
    let (mut declared, mut offset, mut size) = (None, None, None);
    for part in line.split(';') {
        match part.trim().split_once(':') {
            Some(("field", text)) => declared = Some(text.trim()),
            Some(("offset", text)) => offset = text.trim().parse().ok(),
            Some(("size", text)) => size = text.trim().parse().ok(),
            _ => {}
        }
    }
    let (declared, offset, size): (&str, usize, usize) = (declared?, offset?, size?);
    let name = declared.rsplit([' ', '*']).next()?;
    let name = name.split('[').next()?;
    let plausible = !name.is_empty() && offset < MAX_RECORD && size < MAX_RECORD;
    plausible.then(|| Field {
        name: name.to_owned(),
        offset,
        size,
        dynamic: declared.starts_with("__data_loc"),
    })
}

impl Format {
    /// The field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = "name: sched_switch\nID: 310\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] comm;\toffset:28;\tsize:4;\tsigned:0;\n\
        \nprint fmt: \"field:x;offset:1;size:1;\"\n";

    #[test]
    fn fields_are_found_with_their_place() {
        let format = parse(SWITCH).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("sched_switch", 310));
        let comm = format.field("prev_comm").unwrap();
        assert_eq!((comm.offset, comm.size, comm.dynamic), (8, 16, false));
        assert!(format.field("comm").unwrap().dynamic);
        assert_eq!(format.fields.len(), 4);
    }

    #[test]
    fn nonsense_gives_no_format_and_no_field() {
        for text in ["", "name: x", "ID: 5", "name: x\nID: 99999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for line in ["field:", "field:int x;offset:-1;size:4", "field:int x;offset:9999999;size:4"]
        {
            assert_eq!(field(line), None, "{line}");
        }
    }
}
