//! What a query may be before it is planned: planning folds constants and copies plans, and no memory limit counts that.
//!
//! `SELECT x || x AS x FROM (SELECT x || x AS x FROM ...)` doubles a text at each level; a common table expression that is
//! used twice at each level doubles the plan.

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Cte, Statement as SqlStatement};

/// Functions that make much text of little at once.
pub(crate) const LEFT_OUT: [&str; 5] = ["repeat", "lpad", "rpad", "replace", "regexp_replace"];
/// A text may become 2 to the power of this times as long.
const MAX_DOUBLINGS: u32 = 8;
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
    let begins = |pair: &&[String]| pair[0] == "with" && !["time", "ties"].contains(&&*pair[1]);
    let expressions = query.with.as_ref().map_or(&[][..], |with| &with.cte_tables);
    if usize::from(query.with.is_some()) < words.windows(2).filter(begins).count() {
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

/// Refuses a plan that could take much memory before a row is read.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut steps = 0;
    if MAX_DOUBLINGS < doublings(plan, &mut steps)? {
        let text = "the query makes texts too long: use fewer || and concat on top of one another";
        return Err(refused(text));
    }
    Ok(())
}

fn refused(text: &str) -> DataFusionError {
    DataFusionError::Plan(text.to_owned())
}

/// How often the longest text of a plan may be doubled on the way to its rows.
fn doublings(plan: &LogicalPlan, steps: &mut usize) -> Result<u32> {
    *steps += 1;
    if MAX_STEPS < *steps {
        return Err(refused("the query has too many steps"));
    }
    let mut of_expressions = 0;
    for expression in plan.expressions() {
        of_expressions = of_expressions.max(of_expression(&expression, steps)?);
    }
    let mut of_inputs = 0;
    for input in plan.inputs() {
        let of_input = doublings(input, steps)?;
        of_inputs = match plan {
            LogicalPlan::Union(_) => of_input.max(of_inputs),
            // The one may see the other's rows.
            _ => of_input.saturating_add(of_inputs),
        };
    }
    Ok(of_inputs.saturating_add(of_expressions))
}

fn of_expression(expression: &Expr, steps: &mut usize) -> Result<u32> {
    let mut sum: u32 = 0;
    expression.apply(|part| {
        sum = sum.saturating_add(match part {
            Expr::BinaryExpr(binary) if binary.op == Operator::StringConcat => 1,
            Expr::ScalarFunction(function) => of_function(function)?,
            Expr::ScalarSubquery(query) => doublings(&query.subquery, steps)?,
            Expr::Exists(exists) => doublings(&exists.subquery.subquery, steps)?,
            Expr::InSubquery(within) => doublings(&within.subquery.subquery, steps)?,
            Expr::SetComparison(compared) => doublings(&compared.subquery.subquery, steps)?,
            _ => 0,
        });
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(sum)
}

/// SQL has other words for some functions than their names, so what is left out is looked for here, too.
fn of_function(function: &ScalarFunction) -> Result<u32> {
    let arguments = u32::try_from(function.args.len()).unwrap_or(u32::MAX);
    match function.name() {
        name if LEFT_OUT.contains(&name) => Err(refused(&format!("there is no function {name}"))),
        // A separator between any two.
        "concat_ws" => Ok(log2(arguments.saturating_mul(2))),
        "concat" | "struct" | "named_struct" => Ok(log2(arguments)),
        "overlay" | "encode" => Ok(1),
        _ => Ok(0),
    }
}

/// Rounded up.
fn log2(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}
