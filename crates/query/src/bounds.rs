//! What a query may be before it is run: planning folds constants and copies plans, and no memory limit counts that, nor
//! the rows between two steps.
//!
//! `SELECT x || x AS x FROM (SELECT x || x AS x FROM ...)` doubles a text at each level; a common table expression that is
//! used twice at each level doubles the plan; a value of a fixed size has that size in each row, and a window function
//! keeps all rows that it sees.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Cte, Query, Statement as SqlStatement, Visit, Visitor};

/// Functions that make much text of little at once, or take minutes for one row.
pub(crate) const LEFT_OUT: [&str; 6] =
    ["repeat", "lpad", "rpad", "replace", "regexp_replace", "levenshtein"];
/// Functions whose last argument names a type.
const CASTS: [&str; 4] = ["arrow_cast", "arrow_try_cast", "cast_to_type", "try_cast_to_type"];
/// A text may become 2 to the power of this times as long.
const MAX_DOUBLINGS: u32 = 6;
/// Bytes that the query's own texts may become in each row.
const MAX_TEXTS: usize = 1 << 15;
/// Steps of a plan, counted as often as they are used.
const MAX_STEPS: usize = 4096;

/// Refuses what is no query, and a query whose common table expressions would be copied too often: whoever plans it walks
/// through each copy.
pub(crate) fn check_text(sql: &str, statement: &Statement) -> Result<()> {
    let query = match statement {
        Statement::Statement(statement) => match statement.as_ref() {
            SqlStatement::Query(query) => Some(query),
            _ => None,
        },
        _ => None,
    };
    let query = query.ok_or_else(|| refused("only a SELECT is answered"))?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = sql.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_lowercase).collect();
    let expressions = query.with.as_ref().map_or(&[][..], |with| &with.cte_tables);
    let mut withs = Withs(0);
    let _ = query.visit(&mut withs);
    if usize::from(query.with.is_some()) < withs.0 {
        return Err(refused("WITH may stand at the beginning only"));
    }
    let uses = |expression: &Cte| {
        let name = expression.alias.name.value.to_lowercase();
        match name.chars().all(is_word) {
            // Once where it is defined.
            true => words.iter().filter(|word| **word == name).count().saturating_sub(1).max(1),
            false => usize::MAX,
        }
    };
    let copies = expressions.iter().map(uses).fold(1, usize::saturating_mul);
    if MAX_STEPS < copies {
        return Err(refused("the query uses its WITH expressions too often"));
    }
    Ok(())
}

/// Counts the queries that have a WITH.
struct Withs(usize);

impl Visitor for Withs {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.0 += usize::from(query.with.is_some());
        ControlFlow::Continue(())
    }
}

/// Refuses a plan that could take much memory that no limit counts.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut seen = Seen::default();
    let doublings = doublings(plan, &mut seen)?;
    if MAX_DOUBLINGS < doublings || MAX_TEXTS < seen.text_bytes << doublings {
        let text = "the query makes texts too long: use fewer || and concat on top of one another";
        return Err(refused(text));
    }
    Ok(())
}

/// What was seen of a plan.
#[derive(Debug, Default)]
struct Seen {
    steps: usize,
    /// Of the query's own texts.
    text_bytes: usize,
}

fn refused(text: &str) -> DataFusionError {
    DataFusionError::Plan(text.to_owned())
}

/// How often the longest text of a plan may be doubled on the way to its rows.
fn doublings(plan: &LogicalPlan, seen: &mut Seen) -> Result<u32> {
    seen.steps += 1;
    if MAX_STEPS < seen.steps {
        return Err(refused("the query has too many steps"));
    }
    if let LogicalPlan::Window(window) = plan
        && !is_grouped(&window.input)
    {
        return Err(refused("OVER is for grouped rows: use GROUP BY in a WITH expression first"));
    }
    let mut of_expressions = 0;
    for expression in plan.expressions() {
        let before = seen.text_bytes;
        let of_this = of_expression(&expression, seen)?;
        if of_this == 0 && matches!(plan, LogicalPlan::Filter(_)) {
            // What is compared gets into no row.
            seen.text_bytes = before;
        }
        of_expressions = of_expressions.max(of_this);
    }
    let mut of_inputs = 0;
    for input in plan.inputs() {
        let of_input = doublings(input, seen)?;
        of_inputs = match plan {
            LogicalPlan::Union(_) => of_input.max(of_inputs),
            // The one may see the other's rows.
            _ => of_input.saturating_add(of_inputs),
        };
    }
    Ok(of_inputs.saturating_add(of_expressions))
}

/// Whether a plan's rows come from a GROUP BY: the memory limit counts these.
fn is_grouped(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(_) => true,
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_) => plan.inputs().into_iter().all(is_grouped),
        _ => false,
    }
}

fn of_expression(expression: &Expr, seen: &mut Seen) -> Result<u32> {
    // Texts that are joined to the first one, and doublings besides.
    let (mut joined, mut doubled): (u32, u32) = (0, 0);
    expression.apply(|part| {
        match part {
            Expr::BinaryExpr(binary) if binary.op == Operator::StringConcat => {
                joined = joined.saturating_add(1);
            }
            Expr::ScalarFunction(function) => {
                let [joins, doubles] = of_function(function)?;
                joined = joined.saturating_add(joins);
                doubled = doubled.saturating_add(doubles);
            }
            Expr::Literal(value, _) => {
                let text = value.try_as_str().flatten().unwrap_or_default();
                seen.text_bytes = seen.text_bytes.saturating_add(text.len());
            }
            Expr::Cast(cast) => has_no_fixed_size(cast.field.data_type())?,
            Expr::TryCast(cast) => has_no_fixed_size(cast.field.data_type())?,
            _ => {}
        }
        let subquery = match part {
            Expr::ScalarSubquery(query) => Some(query),
            Expr::Exists(exists) => Some(&exists.subquery),
            Expr::InSubquery(within) => Some(&within.subquery),
            Expr::SetComparison(compared) => Some(&compared.subquery),
            _ => None,
        };
        if let Some(query) = subquery {
            doubled = doubled.saturating_add(doublings(&query.subquery, seen)?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(doubled.saturating_add(log2(joined.saturating_add(1))))
}

/// A value of such a type takes its whole size in each row, also where it is null.
fn has_no_fixed_size(data_type: &DataType) -> Result<()> {
    let is_fixed = format!("{data_type:?}").contains("FixedSize");
    if is_fixed { Err(refused("there are no types of a fixed size")) } else { Ok(()) }
}

/// How many texts a function joins to its first, and how often it doubles one. SQL has other words for some functions than
/// their names, so what is left out is looked for here, too.
fn of_function(function: &ScalarFunction) -> Result<[u32; 2]> {
    let arguments = u32::try_from(function.args.len()).unwrap_or(u32::MAX);
    match function.name() {
        name if LEFT_OUT.contains(&name) => Err(refused(&format!("there is no function {name}"))),
        name if CASTS.contains(&name) => match function.args.last() {
            Some(Expr::Literal(ScalarValue::Utf8(Some(name)), _))
                if !name.contains("FixedSize") =>
            {
                Ok([0, 0])
            }
            _ => Err(refused("the type must be a text, and none of a fixed size")),
        },
        // A separator between any two.
        "concat_ws" => Ok([arguments.saturating_mul(2), 0]),
        "concat" | "struct" | "named_struct" => Ok([arguments, 0]),
        "overlay" | "encode" => Ok([0, 1]),
        _ => Ok([0, 0]),
    }
}

/// Rounded up.
fn log2(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}
