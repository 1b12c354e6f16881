//! Tables as JSON.

use serde_json::{Map, Value};

use crate::clean;
use crate::table::{Cell, Table};

impl Table {
    /// An object per row.
    #[must_use]
    pub fn json(&self) -> Value {
        self.rows.iter().map(|row| self.object(row)).collect()
    }

    /// The object of one row.
    #[must_use]
    pub fn object(&self, row: &[Cell]) -> Value {
        let mut object = Map::new();
        for (n, column) in self.columns.iter().enumerate() {
            if let Some(key) = column.json {
                insert(&mut object, key, row.get(n).map_or(Value::Null, Value::from));
            }
        }
        Value::Object(object)
    }
}

fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    let Some((outer, inner)) = key.split_once('.') else {
        object.insert(key.to_owned(), value);
        return;
    };
    let member = object.entry(outer).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(member) = member {
        insert(member, inner, value);
    }
}

impl From<&Cell> for Value {
    fn from(cell: &Cell) -> Self {
        match cell {
            Cell::Text(text) | Cell::Coloured(_, text) => clean(text).into(),
            Cell::Number(n, _) => (*n).into(),
            Cell::Change(n, _) => (*n).into(),
            Cell::Share(_, 0) | Cell::Unknown(_) => Self::Null,
            Cell::Share(part, whole) => crate::share(*part, *whole).into(),
            Cell::Real(number) | Cell::RealChange(number) => (*number).into(),
            Cell::Flag(flag) => (*flag).into(),
            Cell::Json(value) => value.clone(),
        }
    }
}

/// As printed: indented, with a line feed at its end. Whole numbers that JavaScript and jq would round are strings.
#[must_use]
pub fn pretty(value: &Value) -> String {
    let mut value = value.clone();
    quote_large_numbers(&mut value);
    format!("{value:#}\n")
}

/// Up to here a double has every whole number.
const LARGEST_EXACT: u64 = 1 << 53;

fn quote_large_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            if magnitude.is_some_and(|magnitude| LARGEST_EXACT < magnitude) {
                *value = Value::String(number.to_string());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(quote_large_numbers),
        Value::Object(members) => members.values_mut().for_each(quote_large_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;
    use crate::table::Column;

    /// A reader with doubles has every number as it was written.
    #[test]
    fn numbers_that_a_double_would_round_are_strings() {
        let at: u64 = 1_700_000_000_123_456_789;
        let value = json!({
            "at": [{ "ns": at }], "low": i64::MIN, "highest": u64::MAX,
            "exact": 1_u64 << 53, "negative": -(1_i64 << 53), "real": 1e300,
        });
        let text = pretty(&value);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["at"][0]["ns"], "1700000000123456789");
        assert_eq!(
            (&read["low"], &read["highest"]),
            (&json!("-9223372036854775808"), &json!("18446744073709551615"))
        );
        for key in ["exact", "negative", "real"] {
            assert_eq!(read[key], value[key]);
        }
    }

    #[test]
    fn an_object_per_row() {
        let columns =
            ["vm", "share", "stolen.outside_ns", "stolen.vmm_ns", "pid"].map(Column::data);
        let mut table = Table::new("", columns.to_vec());
        table.columns.push(Column::number("for people"));
        table.row([
            "a\u{7}".into(),
            Cell::Share(1, 3),
            Cell::ns(1),
            Cell::ns(2),
            Cell::Unknown("gone"),
        ]);
        table.rest.push(vec!["(other)".into()]);
        let expected = json!([{
            "vm": "a\\u{7}", "share": 0.333333, "stolen": { "outside_ns": 1, "vmm_ns": 2 }, "pid": null
        }]);
        assert_eq!(table.json(), expected);
        // In the order of the columns.
        assert!(pretty(&table.json()).starts_with("[\n  {\n    \"vm\""));
    }
}
