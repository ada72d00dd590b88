//! Places of a scenario's text, and other values there: `scheduler`, `host.cores`, `guest.0.weight`.

use toml::{Table, Value};

/// The scenario with these values at these places. Numbers in a place count entries of a list; the one after the
/// last adds to it.
///
/// # Errors
/// A place goes through something that has no places of its own.
pub(crate) fn changed<'a>(
    scenario: &Table,
    changes: impl IntoIterator<Item = (&'a str, &'a Value)>,
) -> Result<Table, String> {
    let mut root = Value::Table(scenario.clone());
    for (place, value) in changes {
        let mut at = &mut root;
        for word in place.split('.') {
            let no = || format!("{place}: there is no such place");
            at = match at {
                Value::Table(table) => {
                    table.entry(word).or_insert_with(|| Value::Table(Table::new()))
                }
                Value::Array(list) => {
                    let index: usize = word.parse().map_err(|_| no())?;
                    if index == list.len() {
                        list.push(Value::Table(Table::new()));
                    }
                    list.get_mut(index).ok_or_else(no)?
                }
                _ => return Err(no()),
            };
        }
        *at = value.clone();
    }
    match root {
        Value::Table(table) => Ok(table),
        _ => Err("a place has a name".to_owned()),
    }
}
