//! A check of the field offsets in docs/FORMAT.md: its tables against the records.

/// Asserts that the table of `record` in docs/FORMAT.md has these fields and no other, at
/// these offsets, and its heading this size.
pub fn check(record: &str, bytes: usize, fields: &[(&str, usize)]) {
    let document = include_str!("../../../../docs/FORMAT.md");
    let heading = format!("### {record}: ");
    let section = document
        .split(&heading)
        .nth(1)
        .unwrap_or_else(|| panic!("no section of {record}"));
    let said = section.split(" bytes").next().unwrap_or("");
    assert_eq!(said.replace(',', ""), bytes.to_string(), "size of {record}");
    let table = section.split("\n#").next().unwrap_or("");
    let drawn: Vec<(String, usize)> = table
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let offset = cells.next()?.parse().ok()?;
            let name = cells.nth(1)?.trim_matches('`').to_owned();
            Some((name, offset))
        })
        .collect();
    let real: Vec<(String, usize)> = fields
        .iter()
        .map(|(name, offset)| ((*name).to_owned(), *offset))
        .collect();
    assert_eq!(drawn, real, "{record}");
}

/// [`check`] of a record's fields by name.
macro_rules! check_format {
    ($record:ident: $($field:ident)+) => {
        $crate::node::format::check(
            stringify!($record),
            core::mem::size_of::<$record>(),
            &[$((stringify!($field), core::mem::offset_of!($record, $field))),+],
        )
    };
}
pub(crate) use check_format;
