//! The file format Parquet, as much of it as a flat table takes (<https://parquet.apache.org/docs/file-format/>).
//!
//! ```text
//! "PAR1"
//! row group of up to 65,536 rows: for each column one page: header, [levels], values
//! ...
//! footer: the columns, and where each page is
//! length of the footer, 4 bytes
//! "PAR1"
//! ```
//! A column is text without nulls, or numbers with nulls. Levels say which rows are not null, as runs. Values follow one
//! another, little-endian, nothing compressed. Headers and footer are structures of Thrift's compact protocol, whose
//! numbers of fields are those of `parquet.thrift`.
//!
//! It is written here because the library for it has a licence that does not go together with Instep's (decision 21).

use std::io::{self, Write};
use std::ops::Range;

/// The begin and the end of a file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Rows of a row group at most.
const GROUP: usize = 1 << 16;
/// `Encoding.PLAIN` and `Encoding.RLE`.
const PLAIN: i32 = 0;
const RLE: i32 = 3;

/// A column and its name.
pub(in crate::sim) type Column = (&'static str, Values);

/// A column's values.
pub(in crate::sim) enum Values {
    Text(Vec<String>),
    Count(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Count(values) => values.len(),
            Self::Real(values) => values.len(),
        }
    }

    /// `Type`: BYTE_ARRAY, INT64 or DOUBLE.
    fn physical_type(&self) -> i32 {
        match self {
            Self::Text(_) => 6,
            Self::Count(_) => 2,
            Self::Real(_) => 5,
        }
    }

    fn may_be_null(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    /// What a page with these rows holds.
    fn page(&self, rows: Range<usize>) -> io::Result<Vec<u8>> {
        let mut page = Vec::new();
        match self {
            Self::Text(values) => {
                for text in &values[rows] {
                    page.extend(length(text.len())?.to_le_bytes());
                    page.extend(text.as_bytes());
                }
            }
            Self::Count(values) => numbers(&mut page, &values[rows], |it| it.to_le_bytes())?,
            Self::Real(values) => numbers(&mut page, &values[rows], |it| it.to_le_bytes())?,
        }
        Ok(page)
    }
}

/// Levels and values of numbers that may be missing.
fn numbers<T: Copy>(
    page: &mut Vec<u8>,
    values: &[Option<T>],
    bytes: impl Fn(T) -> [u8; 8],
) -> io::Result<()> {
    let mut levels = Vec::new();
    for run in values.chunk_by(|one, next| one.is_some() == next.is_some()) {
        put_varint(&mut levels, (run.len() as u64) << 1);
        levels.push(u8::from(run[0].is_some()));
    }
    page.extend(length(levels.len())?.to_le_bytes());
    page.extend(levels);
    values.iter().flatten().for_each(|value| page.extend(bytes(*value)));
    Ok(())
}

/// Where the page of a column is.
struct Page {
    offset: u64,
    /// With its header.
    size: u64,
}

/// Writes a table of this name; all columns have the same number of rows.
///
/// # Errors
/// Of the output, and when a page is larger than 2 GiB.
pub(super) fn write(mut out: impl Write, name: &str, columns: &[Column]) -> io::Result<()> {
    let rows = columns.first().map_or(0, |(_, values)| values.len());
    assert!(columns.iter().all(|(_, values)| values.len() == rows), "columns of one length");
    out.write_all(MAGIC)?;
    let mut offset = MAGIC.len() as u64;
    let mut groups = Vec::new();
    for start in (0..rows).step_by(GROUP) {
        let range = start..rows.min(start + GROUP);
        let mut pages = Vec::new();
        for (_, values) in columns {
            let page = values.page(range.clone())?;
            let header = page_header(range.len(), page.len())?;
            out.write_all(&header)?;
            out.write_all(&page)?;
            let size = (header.len() + page.len()) as u64;
            pages.push(Page { offset, size });
            offset += size;
        }
        groups.push((range.len(), pages));
    }
    let footer = footer(name, columns, rows, &groups)?;
    out.write_all(&footer)?;
    out.write_all(&length(footer.len())?.to_le_bytes())?;
    out.write_all(MAGIC)?;
    out.flush()
}

/// `PageHeader` of a data page.
fn page_header(rows: usize, size: usize) -> io::Result<Vec<u8>> {
    let (rows, size) = (length(rows)?, length(size)?);
    let mut it = Struct::default();
    it.i32(1, 0);
    it.i32(2, size);
    it.i32(3, size);
    let mut data = Struct::default();
    data.i32(1, rows);
    data.i32(2, PLAIN);
    data.i32(3, RLE);
    data.i32(4, RLE);
    it.structure(5, data);
    Ok(it.end())
}

/// `FileMetaData`.
fn footer(
    name: &str,
    columns: &[Column],
    rows: usize,
    groups: &[(usize, Vec<Page>)],
) -> io::Result<Vec<u8>> {
    let mut root = Struct::default();
    root.text(4, name);
    root.i32(5, length(columns.len())?);
    let mut schema = vec![root];
    schema.extend(columns.iter().map(schema_element));
    let mut it = Struct::default();
    it.i32(1, 1);
    it.list(2, schema);
    it.i64(3, rows as u64);
    it.list(4, groups.iter().map(|(rows, pages)| row_group(columns, *rows, pages)).collect());
    it.text(6, concat!("instep ", env!("CARGO_PKG_VERSION")));
    Ok(it.end())
}

/// `SchemaElement` of a column.
fn schema_element((name, values): &Column) -> Struct {
    let mut it = Struct::default();
    it.i32(1, values.physical_type());
    it.i32(3, i32::from(values.may_be_null()));
    it.text(4, name);
    if matches!(values, Values::Text(_)) {
        // `ConvertedType.UTF8`, and the same as a `LogicalType` of the kind STRING.
        it.i32(6, 0);
        let mut string = Struct::default();
        string.structure(1, Struct::default());
        it.structure(10, string);
    }
    it
}

/// `RowGroup`.
fn row_group(columns: &[Column], rows: usize, pages: &[Page]) -> Struct {
    let chunk = |((name, values), page): (&Column, &Page)| {
        let mut data = Struct::default();
        data.i32(1, values.physical_type());
        data.i32_list(2, &[PLAIN, RLE]);
        data.text_list(3, &[name]);
        data.i32(4, 0);
        data.i64(5, rows as u64);
        data.i64(6, page.size);
        data.i64(7, page.size);
        data.i64(9, page.offset);
        let mut it = Struct::default();
        it.i64(2, page.offset);
        it.structure(3, data);
        it
    };
    let mut it = Struct::default();
    it.list(1, columns.iter().zip(pages).map(chunk).collect());
    it.i64(2, pages.iter().map(|page| page.size).sum());
    it.i64(3, rows as u64);
    it
}

/// A length as the format has it.
fn length(length: usize) -> io::Result<i32> {
    let large = |_| io::Error::new(io::ErrorKind::FileTooLarge, "a page is larger than 2 GiB");
    i32::try_from(length).map_err(large)
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Types of Thrift's compact protocol.
#[derive(Clone, Copy)]
enum ThriftType {
    I32 = 5,
    I64 = 6,
    Binary = 8,
    List = 9,
    Struct = 12,
}

/// A structure of Thrift's compact protocol; fields come in the order of their numbers.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(&mut self, number: u8, kind: ThriftType) {
        // All numbers here are less than 16 apart.
        self.bytes.push((number - self.last) << 4 | kind as u8);
        self.last = number;
    }

    fn i32(&mut self, number: u8, value: i32) {
        self.field(number, ThriftType::I32);
        put_varint(&mut self.bytes, zigzag(value.into()));
    }

    fn i64(&mut self, number: u8, value: u64) {
        self.field(number, ThriftType::I64);
        put_varint(&mut self.bytes, zigzag(value.cast_signed()));
    }

    fn text(&mut self, number: u8, text: &str) {
        self.field(number, ThriftType::Binary);
        self.put_text(text);
    }

    fn structure(&mut self, number: u8, value: Self) {
        self.field(number, ThriftType::Struct);
        self.bytes.extend(value.end());
    }

    fn list(&mut self, number: u8, items: Vec<Self>) {
        self.list_of(number, ThriftType::Struct, items.len());
        items.into_iter().for_each(|item| self.bytes.extend(item.end()));
    }

    fn i32_list(&mut self, number: u8, items: &[i32]) {
        self.list_of(number, ThriftType::I32, items.len());
        items.iter().for_each(|item| put_varint(&mut self.bytes, zigzag((*item).into())));
    }

    fn text_list(&mut self, number: u8, items: &[&str]) {
        self.list_of(number, ThriftType::Binary, items.len());
        items.iter().for_each(|item| self.put_text(item));
    }

    fn list_of(&mut self, number: u8, kind: ThriftType, length: usize) {
        self.field(number, ThriftType::List);
        if length < 15 {
            self.bytes.push((length as u8) << 4 | kind as u8);
        } else {
            self.bytes.push(0xf0 | kind as u8);
            put_varint(&mut self.bytes, length as u64);
        }
    }

    fn put_text(&mut self, text: &str) {
        put_varint(&mut self.bytes, text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    /// Values of each row as the library for Parquet reads them.
    fn read(columns: &[Column]) -> Vec<Vec<Field>> {
        let mut bytes = Vec::new();
        write(&mut bytes, "table", columns).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
        rows.map(|row| row.get_column_iter().map(|(_, value)| value.clone()).collect()).collect()
    }

    #[test]
    fn library_reads_every_value_of_a_table_with_many_row_groups() {
        let rows = GROUP * 2 + 3;
        let text: Vec<String> =
            (0..rows).map(|row| "\u{e4}x".repeat(row % 100) + &row.to_string()).collect();
        let number = |row: usize| (row % 7 > 1 && row / 300 % 3 > 1).then_some(row as i64 - 5000);
        let count: Vec<_> = (0..rows).map(number).collect();
        let real: Vec<_> = count.iter().map(|it| it.map(|it| it as f64 / 3.0)).collect();
        let expected = text.iter().zip(&count).zip(&real).map(|((text, count), real)| {
            let count = count.map_or(Field::Null, Field::Long);
            vec![Field::Str(text.clone()), count, real.map_or(Field::Null, Field::Double)]
        });
        let expected: Vec<_> = expected.collect();
        let columns = [
            ("text", Values::Text(text.clone())),
            ("count", Values::Count(count)),
            ("real", Values::Real(real)),
        ];
        assert!(read(&columns) == expected);
    }

    #[test]
    fn library_reads_extremes_and_tables_without_rows() {
        let count = vec![Some(i64::MIN), None, Some(i64::MAX), Some(-1)];
        let real = vec![None, Some(f64::NEG_INFINITY), Some(f64::MIN_POSITIVE), Some(-0.0)];
        let rows = read(&[("count", Values::Count(count)), ("real", Values::Real(real))]);
        let at = |column: usize| rows.iter().map(|row| row[column].clone()).collect::<Vec<_>>();
        let long = Field::Long;
        assert_eq!(at(0), [long(i64::MIN), Field::Null, long(i64::MAX), long(-1)]);
        let double = Field::Double;
        let expected =
            [Field::Null, double(f64::NEG_INFINITY), double(f64::MIN_POSITIVE), double(-0.0)];
        assert_eq!(at(1), expected);
        assert!(read(&[("text", Values::Text(Vec::new()))]).is_empty());
    }

    #[test]
    fn page_beyond_the_formats_sizes_is_an_error() {
        assert!(length(1 << 31).is_err_and(|error| error.to_string().contains("2 GiB")));
    }
}
