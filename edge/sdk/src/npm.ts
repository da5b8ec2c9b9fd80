import './extras/backlog';
import './extras/views';
import './tag';
