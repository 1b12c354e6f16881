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

/// As printed: indented, with a line feed at its end.
#[must_use]
pub fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;
    use crate::table::Column;

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
