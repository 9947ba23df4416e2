// What a dashboard may be, by Grafana's own published types; the test appends the dashboard as one literal, in which a
// member that the types do not know is an error.
import type { Dashboard, Panel, FieldConfigSource, DataSourceRef, VariableModel } from '@grafana/schema';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as Series, FieldConfig as SeriesField } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Options as Table } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';

// Values as JSON has them: an enum of words is any of its words.
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Query = { refId: string; expr: string; legendFormat: string; datasource: DataSourceRef; instant?: true; format?: 'table' };
type Fields<C> = Omit<FieldConfigSource, 'defaults'> & {
  defaults: Omit<FieldConfigSource['defaults'], 'custom'> & { custom?: Partial<C> } };
type Kind<T extends string, O, C> = Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: T; options: O; fieldConfig: Fields<C>; targets: Query[] };
type Ours = Omit<Dashboard, 'panels'> & {
  panels: (Kind<'stat', Stat, never> | Kind<'timeseries', Series, SeriesField> | Kind<'table', Table, never>)[] };

export type Variables = VariableModel;
export const dashboard: Plain<Ours> =
