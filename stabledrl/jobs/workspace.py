"""A dashboard as a W&B workspace. Needs the extra `dashboard` (wandb-workspaces)."""

from __future__ import annotations

import wandb
from wandb_workspaces import expr
from wandb_workspaces.reports import v2 as reports
from wandb_workspaces.workspaces import (
    RunsetSettings,
    Section,
    SectionLayoutSettings,
    SectionPanelSettings,
    Workspace,
    WorkspaceSettings,
)

from stabledrl.diagnostics import dashboard as described

MOST_RUNS = 100  # drawn in a panel; W&B's 10 would leave out seeds


def workspace(dashboard: described.Dashboard, entity: str) -> Workspace:
    """The workspace of an account or team, not saved yet.

    A workspace has one set of runs; grouped by the arms' keys it holds one set per arm, drawn as
    the mean of its seeds within their extremes.
    """
    groups: list[expr.MetricType] = [expr.Config(key) for key in dashboard.arms]
    wanted = expr.And(expr.Metric("Group") == dashboard.sweep) if dashboard.sweep else ""
    return Workspace(
        entity=entity,
        project=dashboard.project,
        name=dashboard.name,
        sections=[section(item, dashboard.step_metric) for item in dashboard.sections],
        settings=WorkspaceSettings(x_axis=dashboard.step_metric, max_runs=MOST_RUNS),
        runset_settings=RunsetSettings(filters=wanted, groupby=groups),
    )


def section(item: described.Section, step_metric: str) -> Section:
    """One heading with its panels, in one row where they fit."""
    rows = -(-len(item.panels) // item.columns)
    return Section(
        name=item.name,
        panels=[panel(each, step_metric) for each in item.panels],
        is_open=item.is_open,
        layout_settings=SectionLayoutSettings(columns=item.columns, rows=rows),
        panel_settings=SectionPanelSettings(x_axis=step_metric),
    )


def panel(item: described.Panel, step_metric: str) -> reports.LinePlot:
    """A line plot without smoothing: one update is what a spike lasts."""
    return reports.LinePlot(
        title=item.title,
        x=step_metric,
        y=list(item.metrics),
        log_y=item.log_scale,
        ignore_outliers=False,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
    )


def save(dashboard: described.Dashboard) -> str:
    """Save the workspace under the account that is logged in; its address."""
    entity = dashboard.entity or str(wandb.Api().default_entity)
    return str(workspace(dashboard, entity).save().url)
